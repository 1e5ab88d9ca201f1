// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/arrays.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd_python {
namespace {

// The start of PyArrayObject_fields, the same in all versions of NumPy since 1.7. Python checks it on real arrays.
struct ArrayFields {
  PyObject_HEAD  // NOLINT
      char* data;
  int ndim;
  intptr_t* dimensions;
  intptr_t* strides;
  PyObject* base;
  PyObject* dtype;
  int flags;
};

constexpr int kContiguous = 0x0001, kAligned = 0x0100, kWriteable = 0x0400;
constexpr int kUsable = kContiguous | kAligned | kWriteable;

class ArrayReader {
 public:
  ArrayReader(nb::handle array_type, const nb::dict& dtypes) : array_type_(nb::borrow(array_type)) {
    for (auto [dtype, id] : dtypes) dtypes_.emplace_back(nb::borrow(dtype), nb::cast<int>(id));
  }

  // (address, shape, dtype id), or None for what needs a closer look: no array, other strides, read-only, a dtype that
  // is unknown or not the common object for it.
  nb::object Read(nb::handle array) const {
    if (!PyObject_TypeCheck(array.ptr(), reinterpret_cast<PyTypeObject*>(array_type_.ptr()))) return nb::none();
    const auto* fields = reinterpret_cast<const ArrayFields*>(array.ptr());
    if ((fields->flags & kUsable) != kUsable) return nb::none();
    for (const auto& [dtype, id] : dtypes_) {
      if (dtype.ptr() != fields->dtype) continue;
      PyObject* shape = PyTuple_New(fields->ndim);
      for (int i = 0; shape && i < fields->ndim; ++i) {
        PyTuple_SetItem(shape, i, PyLong_FromSsize_t(fields->dimensions[i]));
      }
      return nb::make_tuple(reinterpret_cast<uintptr_t>(fields->data), nb::steal(shape), id);
    }
    return nb::none();
  }

 private:
  const nb::object array_type_;
  std::vector<std::pair<nb::object, int>> dtypes_;
};

}  // namespace

void BindArrays(nb::module_& module) {
  nb::class_<ArrayReader>(module, "ArrayReader")
      .def(nb::init<nb::handle, const nb::dict&>(), "array_type"_a, "dtypes"_a)
      .def("read", &ArrayReader::Read, "array"_a);
}

}  // namespace hvd_python
