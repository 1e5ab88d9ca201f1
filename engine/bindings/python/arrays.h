// SPDX-License-Identifier: Apache-2.0
// NumPy arrays without NumPy's headers: read from its public struct, made by its public table of functions. Both are
// the same in all versions since 1.7; Python looks whether they are before it trusts them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "bindings/python/plain_arrays.h"

namespace hvd_python {

class ArrayReader : public PlainArrays {
 public:
  // `table`: NumPy's _ARRAY_API.
  ArrayReader(nanobind::handle array_type, const nanobind::dict& dtypes, nanobind::handle table);

  // False for what needs a closer look: no array, a subclass, other strides, read-only, a dtype that is unknown or not
  // the common object for it.
  bool Read(PyObject* array, PlainArray* plain) const override;

  // The same for Python: (address, shape, dtype id) or None.
  nanobind::object Describe(nanobind::handle array) const;

  bool MayCountRows(int dtype_id) const override;
  // A weak reference: NumPy does not resize an array that has one.
  nanobind::object Hold(nanobind::handle array) const override;
  bool LiesAt(nanobind::handle array, const void* data, int64_t elements) const override;
  NewArray Allocate(int dtype_id, int ndim, const int64_t* shape) const override;
  nanobind::object Make(NewArray* allocated, int dtype_id, int ndim, const int64_t* shape) const override;
  nanobind::object Adopt(void* data, int dtype_id, int ndim, const int64_t* shape) const override;

  nanobind::object EmptyLike(nanobind::handle array) const;

 private:
  int IdOf(nanobind::handle dtype) const;  // -1: unknown
  PyObject* WithId(int dtype_id) const;    // the common object for it, a new reference

  const nanobind::object array_type_;
  std::vector<std::pair<nanobind::object, int>> dtypes_;
  void** const table_;
};

void BindArrays(nanobind::module_& module);

}  // namespace hvd_python
