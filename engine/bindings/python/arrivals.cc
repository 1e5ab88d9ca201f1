// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/arrivals.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>
#include <structmember.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "bindings/python/gradient_homes.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd_python {
namespace {

// Records arrived gradients, and calls `notify` for the first one and when their bytes reach the limit.
class Arrivals {
 public:
  Arrivals(uint64_t limit, nb::callable notify) : limit_(limit), notify_(std::move(notify)) {}

  using Stream = std::pair<int32_t, uint64_t>;  // a device number and a stream on it

  void Add(uint32_t number, uint64_t bytes, const Stream* stream) {
    bool tell;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      tell = numbers_.empty() || bytes_ + bytes >= limit_;
      numbers_.push_back(number);
      bytes_ += bytes;
      if (stream && std::find(streams_.begin(), streams_.end(), *stream) == streams_.end()) streams_.push_back(*stream);
    }
    if (tell) notify_();
  }

  std::vector<uint32_t> Take() {
    std::lock_guard<std::mutex> lock(mutex_);
    bytes_ = 0;
    return std::exchange(numbers_, {});
  }

  std::vector<Stream> TakeStreams() {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(streams_, {});
  }

  bool Empty() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return numbers_.empty();
  }
  bool Full() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return bytes_ >= limit_;
  }

 private:
  // Several threads may add arrivals, because autograd has one thread for each device.
  mutable std::mutex mutex_;
  const uint64_t limit_;
  uint64_t bytes_ = 0;
  std::vector<uint32_t> numbers_;
  std::vector<Stream> streams_;  // without duplicates
  const nb::callable notify_;
};

// A hook runs for every gradient of every step. An object of its own type needs one memory access where a nanobind
// function needs several. It must hold no gradient and no tensor, because the garbage collector cannot look inside, so
// a reference cycle through it would never be freed.
struct Hook {
  PyObject_HEAD  // NOLINT
      vectorcallfunc call;
  Arrivals* arrivals;
  PyObject* owner;       // owner of `arrivals`
  GradientHomes* homes;  // nullptr: gradients are not moved to shared memory
  PyObject* homes_owner;
  PyObject* stream_of;  // None: the gradient's device has no streams
  PyObject* device;
  uint64_t bytes;
  uint32_t number;

  Arrivals::Stream CurrentStream() const {
    const nb::object stream = nb::steal(PyObject_CallFunctionObjArgs(stream_of, device, nullptr));
    if (!stream.is_valid()) throw nb::python_error();
    return {nb::cast<int32_t>(nb::handle(device)), nb::cast<uint64_t>(stream)};
  }
};

PyTypeObject* hook_type = nullptr;

PyObject* CallHook(PyObject* self, PyObject* const* arguments, size_t, PyObject*) {
  const auto* hook = reinterpret_cast<const Hook*>(self);
  try {
    if (hook->homes && hook->bytes >= hook->homes->least()) hook->homes->Adopt(hook->number, arguments[0]);
    if (hook->stream_of == Py_None) {
      hook->arrivals->Add(hook->number, hook->bytes, nullptr);
    } else {
      const Arrivals::Stream stream = hook->CurrentStream();
      hook->arrivals->Add(hook->number, hook->bytes, &stream);
    }
  } catch (nb::python_error& error) {
    error.restore();
    return nullptr;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
  Py_RETURN_NONE;
}

void FreeHook(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  Py_DECREF(reinterpret_cast<Hook*>(self)->owner);
  Py_DECREF(reinterpret_cast<Hook*>(self)->homes_owner);
  Py_DECREF(reinterpret_cast<Hook*>(self)->stream_of);
  Py_DECREF(reinterpret_cast<Hook*>(self)->device);
  PyObject_Free(self);
  Py_DECREF(type);
}

PyMemberDef hook_members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Hook, call), READONLY, nullptr},
                              {nullptr, 0, 0, 0, nullptr}};
PyType_Slot hook_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(FreeHook)},
                            {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                            {Py_tp_members, hook_members},
                            {0, nullptr}};
PyType_Spec hook_spec = {"horovod._engine.ArrivalHook", sizeof(Hook), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, hook_slots};

nb::object MakeHook(nb::object self, uint32_t number, uint64_t bytes, nb::object homes, nb::object stream_of,
                    nb::int_ device) {
  Hook* const hook = PyObject_New(Hook, hook_type);
  if (!hook) throw nb::python_error();
  hook->call = CallHook;
  hook->arrivals = nb::cast<Arrivals*>(self);
  hook->owner = self.release().ptr();
  hook->homes = homes.is_none() ? nullptr : nb::cast<GradientHomes*>(homes);
  hook->homes_owner = homes.release().ptr();
  hook->stream_of = stream_of.release().ptr();
  hook->device = device.release().ptr();
  hook->bytes = bytes;
  hook->number = number;
  return nb::steal(reinterpret_cast<PyObject*>(hook));
}

}  // namespace

void BindArrivals(nb::module_& module) {
  hook_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&hook_spec));
  if (!hook_type) throw nb::python_error();
  nb::class_<Arrivals>(module, "Arrivals")
      .def(nb::init<uint64_t, nb::callable>(), "limit"_a, "notify"_a)
      .def("hook", &MakeHook, "number"_a, "nbytes"_a, "homes"_a.none(), "stream_of"_a.none() = nb::none(),
           "device"_a = nb::int_(-1))
      .def("take", &Arrivals::Take)
      .def("take_streams", &Arrivals::TakeStreams)
      .def_prop_ro("full", &Arrivals::Full)
      .def("__bool__", [](const Arrivals& self) { return !self.Empty(); });
}

}  // namespace hvd_python
