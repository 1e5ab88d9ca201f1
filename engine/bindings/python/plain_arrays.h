// SPDX-License-Identifier: Apache-2.0
// What native calls need to know about a framework's arrays: how to read those in simple memory, and how to create
// arrays.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

namespace hvd_python {

constexpr int kMaxDimensions = 64;  // NumPy's limit

// An array (in torch: a tensor) in contiguous host memory, as the engine needs it.
struct PlainArray {
  void* data;
  int ndim;
  const int64_t* shape;  // points into the array itself, or into `copied`
  int dtype_id;
  // Points into the array itself or into `copied`; null: contiguous. Strides of dimensions with one element may have
  // any value.
  const int64_t* strides = nullptr;
  std::vector<int64_t> copied;
};

inline int64_t ElementsOf(int ndim, const int64_t* shape) {
  int64_t elements = 1;
  for (int i = 0; i < ndim; ++i) elements *= shape[i];
  return elements;
}

// A new array with uninitialised elements that is being created.
struct NewArray {
  void* data = nullptr;                                                     // address of its elements
  nanobind::object array;                                                   // the array, if it exists already
  std::unique_ptr<void, decltype(&std::free)> memory{nullptr, &std::free};  // else the memory that the array will own
};

class PlainArrays {
 public:
  virtual ~PlainArrays() = default;

  // Read an array. Return false if Python must handle it, or if it has more than kMaxDimensions dimensions.
  virtual bool Read(PyObject* array, PlainArray* plain) const = 0;
  // Return true if the framework has to record how the result depends on this array.
  virtual bool IsRecorded(nanobind::handle) const { return false; }
  // Return true if arrays of this type may hold the numbers of rows for each rank.
  virtual bool MayCountRows(int dtype_id) const = 0;
  // Return true if arrays of this type can be created here.
  virtual bool CanMake(int) const { return true; }

  // Return an object to hold while an operation is under way, so that the array's memory stays in place as far as the
  // framework allows it.
  virtual nanobind::object Hold(nanobind::handle array) const = 0;
  // Return true if the array still has this address and number of elements.
  virtual bool LiesAt(nanobind::handle array, const void* data, int64_t elements) const = 0;

  // Create an array in two steps: the engine only needs the memory, and the array can be created while the engine waits
  // for other ranks. If Make throws, the memory stays valid.
  virtual NewArray Allocate(int dtype_id, int ndim, const int64_t* shape) const = 0;
  virtual nanobind::object Make(NewArray* allocated, int dtype_id, int ndim, const int64_t* shape) const = 0;
  // Create an array that owns memory which the engine allocated.
  virtual nanobind::object Adopt(void* data, int dtype_id, int ndim, const int64_t* shape) const = 0;
};

}  // namespace hvd_python
