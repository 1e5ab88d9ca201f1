// SPDX-License-Identifier: Apache-2.0
// NumPy arrays without NumPy's headers: read from its public struct, made by its public table of functions. Both are
// the same in all versions since 1.7; Python looks whether they are before it trusts them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace hvd_python {

// An array that lies in memory as the engine wants it.
struct PlainArray {
  char* data;
  int ndim;
  const int64_t* shape;
  PyObject* dtype;  // borrowed
  int dtype_id;
};

class ArrayReader {
 public:
  // `table`: NumPy's _ARRAY_API.
  ArrayReader(nanobind::handle array_type, const nanobind::dict& dtypes, nanobind::handle table);

  // False for what needs a closer look: no array, other strides, read-only, a dtype that is unknown or not the common
  // object for it.
  bool Read(PyObject* array, PlainArray* plain) const;

  // The same for Python: (address, shape, dtype id) or None.
  nanobind::object Describe(nanobind::handle array) const;

  // A new array with uninitialised elements. `data`: where it lies; it then passes to the array, which frees it by the
  // engine's free_buffer.
  nanobind::object Make(PyObject* dtype, int ndim, const int64_t* shape, void* data = nullptr) const;
  nanobind::object EmptyLike(nanobind::handle array) const;

  int IdOf(nanobind::handle dtype) const;       // -1: unknown
  nanobind::handle WithId(int dtype_id) const;  // the common object for it

 private:
  const nanobind::object array_type_;
  std::vector<std::pair<nanobind::object, int>> dtypes_;
  void** const table_;
};

void BindArrays(nanobind::module_& module);

}  // namespace hvd_python
