// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/table.h"

#include <nanobind/stl/string.h>

#include "bindings/python/unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd_python {
namespace {

PyObject* engine_error = nullptr;

}  // namespace

const hvd_api* Api() {
  static const hvd_api* api = hvd_get_api(HVD_ABI_VERSION);
  return api;
}

void BindErrors(nb::module_& module) {
  engine_error = PyErr_NewException("horovod._engine.EngineError", nullptr, nullptr);
  module.attr("EngineError") = nb::borrow(engine_error);
  module.def("moved_text", &MovedText, "name"_a);
}

nb::object ErrorOf(const hvd_status& status) {
  PyObject* error = PyObject_CallFunction(engine_error, "isi", status.code, status.text, status.lost_rank);
  if (!error) throw nb::python_error();
  return nb::steal(error);
}

void Raise(const hvd_status& status) {
  PyErr_SetObject(engine_error, ErrorOf(status).ptr());
  throw nb::python_error();
}

std::string MovedText(const std::string& name) {
  return "the tensor of '" + name +
         "' was resized or given other memory while the operation was under way: its values are undefined; wait for "
         "the operation (synchronize) first";
}

int32_t WaitUnlocked(hvd_world* world, int64_t handle, double timeout_s, hvd_status* status) {
  Blocked blocked(world);
  for (double left_ms = timeout_s * 1e3;; left_ms -= kSignalPeriodMs) {
    const bool last = timeout_s >= 0 && left_ms <= kSignalPeriodMs;
    int32_t code;
    {
      Unlocked unlocked;
      code = Api()->wait(world, handle, last ? static_cast<int32_t>(left_ms) : kSignalPeriodMs, status);
    }
    if (code != HVD_IN_PROGRESS) return code;
    if (PyErr_CheckSignals()) throw nb::python_error();
    if (last) return code;
    if (timeout_s < 0) blocked.Tell(handle);
  }
}

int32_t FinishUnlocked(hvd_world* world, int64_t handle, bool look, hvd_status* status) {
  int32_t code = look ? Api()->finish(world, handle, 0, status) : HVD_IN_PROGRESS;
  Blocked blocked(world);
  while (code == HVD_IN_PROGRESS) {
    {
      Unlocked unlocked;
      code = Api()->finish(world, handle, kSignalPeriodMs, status);
    }
    if (code != HVD_IN_PROGRESS) return code;
    if (PyErr_CheckSignals()) throw nb::python_error();
    blocked.Tell(handle);
  }
  return code;
}

}  // namespace hvd_python
