// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/submission.h"

#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd_python {

hvd_op Describe(const EngineCall& call, const TensorLocation& tensor, const char* name) {
  hvd_op op{};
  op.size = sizeof op;
  op.kind = call.kind;
  op.dtype = tensor.dtype;
  op.reduce_op = call.reduce_op;
  op.root = call.root;
  op.device = tensor.device;
  op.stream = tensor.stream;
  op.name = name;
  op.shape = tensor.shape.data();
  op.ndim = static_cast<int32_t>(tensor.shape.size());
  op.input = reinterpret_cast<const void*>(tensor.input);
  op.output = reinterpret_cast<void*>(tensor.output);
  op.prescale = call.prescale;
  op.postscale = call.postscale;
  op.wire_dtype = call.wire_dtype;
  return op;
}

void BindSubmission(nb::module_& module) {
  nb::class_<EngineCall>(module, "EngineCall")
      .def(
          "__init__",
          [](EngineCall* self, int kind, int reduce_op, double prescale, double postscale, int root, int wire_dtype,
             bool will_wait, bool prompt) {
            new (self) EngineCall{kind, reduce_op, prescale, postscale, root, wire_dtype, will_wait, prompt};
          },
          "kind"_a, "reduce_op"_a = 1, "prescale"_a = 1.0, "postscale"_a = 1.0, nb::kw_only(), "root"_a = -1,
          "wire_dtype"_a = 0, "will_wait"_a = false, "prompt"_a = false)
      .def_ro("kind", &EngineCall::kind)
      .def_ro("reduce_op", &EngineCall::reduce_op)
      .def_ro("prescale", &EngineCall::prescale)
      .def_ro("postscale", &EngineCall::postscale)
      .def_ro("root", &EngineCall::root)
      .def_ro("wire_dtype", &EngineCall::wire_dtype);
  nb::class_<TensorLocation>(module, "TensorLocation")
      .def(
          "__init__",
          [](TensorLocation* self, int dtype, std::vector<int64_t> shape, uintptr_t input, uintptr_t output, int device,
             uint64_t stream) { new (self) TensorLocation{dtype, std::move(shape), input, output, device, stream}; },
          "dtype"_a, "shape"_a, "input"_a = 0, "output"_a = 0, nb::kw_only(), "device"_a = -1, "stream"_a = 0)
      .def_ro("dtype", &TensorLocation::dtype)
      .def_prop_ro("shape", [](const TensorLocation& self) { return nb::tuple(nb::cast(self.shape)); })
      .def_ro("input", &TensorLocation::input)
      .def_ro("output", &TensorLocation::output)
      .def_rw("device", &TensorLocation::device)
      .def_rw("stream", &TensorLocation::stream);
}

}  // namespace hvd_python
