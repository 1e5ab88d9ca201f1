// SPDX-License-Identifier: Apache-2.0
// Tensors of torch for native calls.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "bindings/python/plain_arrays.h"
#include "bindings/python/tensor_maker.h"
#include "bindings/python/tensor_reader.h"

namespace hvd_python {

class PlainTensors : public PlainArrays {
 public:
  PlainTensors(nanobind::object reader, nanobind::object maker, const nanobind::dict& dtypes,
               nanobind::callable is_grad_enabled);

  bool Read(PyObject* tensor, PlainArray* plain) const override;
  bool IsRecorded(nanobind::handle tensor) const override;
  bool MayCountRows(int dtype_id) const override;
  nanobind::object Hold(nanobind::handle tensor) const override { return reader_->Hold(tensor); }
  bool LiesAt(nanobind::handle tensor, const void* data, int64_t elements) const override {
    return reader_->LiesAt(tensor, data, elements);
  }
  bool CanMake(int dtype_id) const override { return makeable_[static_cast<size_t>(dtype_id)]; }

  NewArray Allocate(int dtype_id, int ndim, const int64_t* shape) const override;
  nanobind::object Make(NewArray* allocated, int dtype_id, int ndim, const int64_t* shape) const override;
  nanobind::object Adopt(void* data, int dtype_id, int ndim, const int64_t* shape) const override;

 private:
  bool Probe(int dtype_id, nanobind::handle dtype) const;

  const nanobind::object reader_object_, maker_object_;  // keep the next two alive
  const TensorReader* const reader_;
  const TensorMaker* const maker_;
  const nanobind::callable is_grad_enabled_;
  const nanobind::object requires_grad_;  // attribute name
  std::vector<bool> makeable_;            // by dtype id: true if torch can create such tensors
};

void BindPlainTensors(nanobind::module_& module);

}  // namespace hvd_python
