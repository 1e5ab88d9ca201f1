// SPDX-License-Identifier: Apache-2.0
// Reads NumPy arrays from NumPy's public struct and creates them with its public function table, without NumPy's
// headers. Both have been stable since version 1.7; Python verifies them before it uses this class.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "bindings/python/plain_arrays.h"

namespace hvd_python {

class ArrayReader : public PlainArrays {
 public:
  // `table` is NumPy's _ARRAY_API.
  ArrayReader(nanobind::handle array_type, const nanobind::dict& dtypes, nanobind::handle table);

  // Return false if Python must handle the object: not an array, a subclass, other strides, read-only, an unknown
  // dtype, or a dtype object other than NumPy's common one.
  bool Read(PyObject* array, PlainArray* plain) const override;

  // Return (address, shape, dtype id) for Python, or None where Read returns false.
  nanobind::object Describe(nanobind::handle array) const;

  bool MayCountRows(int dtype_id) const override;
  // Return a weak reference, because NumPy does not resize an array that has one.
  nanobind::object Hold(nanobind::handle array) const override;
  bool LiesAt(nanobind::handle array, const void* data, int64_t elements) const override;
  NewArray Allocate(int dtype_id, int ndim, const int64_t* shape) const override;
  nanobind::object Make(NewArray* allocated, int dtype_id, int ndim, const int64_t* shape) const override;
  nanobind::object Adopt(void* data, int dtype_id, int ndim, const int64_t* shape) const override;

  nanobind::object EmptyLike(nanobind::handle array) const;

 private:
  int IdOf(nanobind::handle dtype) const;  // -1 if unknown
  PyObject* WithId(int dtype_id) const;    // returns a new reference to the common object for the id

  const nanobind::object array_type_;
  std::vector<std::pair<nanobind::object, int>> dtypes_;
  void** const table_;
};

void BindArrays(nanobind::module_& module);

}  // namespace hvd_python
