// SPDX-License-Identifier: Apache-2.0
// What native calls need to know of a framework's arrays: how to read those that are plain memory, and to make others.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

namespace hvd_python {

constexpr int kMaxDimensions = 64;  // NumPy's limit

// An array (torch: a tensor) that lies in memory as the engine wants it.
struct PlainArray {
  void* data;
  int ndim;
  const int64_t* shape;  // of the array itself, or of `copied`
  int dtype_id;
  const int64_t* strides = nullptr;  // likewise; those of extents of 1 may be any. Null: as the shape says
  std::vector<int64_t> copied;
};

inline int64_t ElementsOf(int ndim, const int64_t* shape) {
  int64_t elements = 1;
  for (int i = 0; i < ndim; ++i) elements *= shape[i];
  return elements;
}

// A new array with uninitialised elements, on its way.
struct NewArray {
  void* data = nullptr;                                                     // where its elements lie
  nanobind::object array;                                                   // if it is made already, or else
  std::unique_ptr<void, decltype(&std::free)> memory{nullptr, &std::free};  // what it will own
};

class PlainArrays {
 public:
  virtual ~PlainArrays() = default;

  // False for what needs a closer look. No more than kMaxDimensions.
  virtual bool Read(PyObject* array, PlainArray* plain) const = 0;
  // Whether the framework has to know how the result comes from this array.
  virtual bool IsRecorded(nanobind::handle) const { return false; }
  // Whether arrays of this type may say how many rows go to each rank.
  virtual bool MayCountRows(int dtype_id) const = 0;
  // Whether arrays of this type can be made here.
  virtual bool CanMake(int) const { return true; }

  // To hold while an operation is under way, so that the array's memory stays where it is: as far as the framework lets
  // us.
  virtual nanobind::object Hold(nanobind::handle array) const = 0;
  // Whether it still lies there, with as many elements.
  virtual bool LiesAt(nanobind::handle array, const void* data, int64_t elements) const = 0;

  // In two steps: the engine needs the memory only, and an array can be made while it waits for others. If the latter
  // throws, the memory stays where it is.
  virtual NewArray Allocate(int dtype_id, int ndim, const int64_t* shape) const = 0;
  virtual nanobind::object Make(NewArray* allocated, int dtype_id, int ndim, const int64_t* shape) const = 0;
  // An array over memory that the engine allocated, which passes to it.
  virtual nanobind::object Adopt(void* data, int dtype_id, int ndim, const int64_t* shape) const = 0;
};

}  // namespace hvd_python
