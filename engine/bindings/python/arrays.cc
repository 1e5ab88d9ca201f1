// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/arrays.h"

#include "bindings/python/table.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd_python {
namespace {

// The first fields of PyArrayObject_fields.
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
static_assert(sizeof(intptr_t) == sizeof(int64_t));

constexpr int kContiguous = 0x0001, kAligned = 0x0100, kWriteable = 0x0400;
constexpr int kUsable = kContiguous | kAligned | kWriteable;

// Indices in NumPy's function table.
constexpr int kNewFromDescr = 94, kSetBaseObject = 282;
using NewFromDescr = PyObject* (*)(PyTypeObject*, PyObject*, int, const intptr_t*, const intptr_t*, void*, int,
                                   PyObject*);
using SetBaseObject = int (*)(PyObject*, PyObject*);

void FreeMemory(PyObject* capsule) { Api()->free_buffer(PyCapsule_GetPointer(capsule, nullptr)); }

nb::object Checked(PyObject* made) {
  if (!made) throw nb::python_error();
  return nb::steal(made);
}

}  // namespace

ArrayReader::ArrayReader(nb::handle array_type, const nb::dict& dtypes, nb::handle table)
    : array_type_(nb::borrow(array_type)), table_(static_cast<void**>(PyCapsule_GetPointer(table.ptr(), nullptr))) {
  if (!table_) throw nb::python_error();
  for (auto [dtype, id] : dtypes) dtypes_.emplace_back(nb::borrow(dtype), nb::cast<int>(id));
}

bool ArrayReader::Read(PyObject* array, PlainArray* plain) const {
  // Subclasses may give the memory another meaning, as masked arrays do.
  if (Py_TYPE(array) != reinterpret_cast<PyTypeObject*>(array_type_.ptr())) return false;
  const auto* fields = reinterpret_cast<const ArrayFields*>(array);
  if ((fields->flags & kUsable) != kUsable) return false;
  const int id = IdOf(fields->dtype);
  if (id < 0) return false;
  plain->data = fields->data;
  plain->ndim = fields->ndim;
  plain->shape = reinterpret_cast<const int64_t*>(fields->dimensions);
  plain->dtype_id = id;
  return true;
}

int ArrayReader::IdOf(nb::handle dtype) const {
  for (const auto& [known, id] : dtypes_) {
    if (known.ptr() == dtype.ptr()) return id;
  }
  return -1;
}

PyObject* ArrayReader::WithId(int dtype_id) const {
  for (const auto& [dtype, id] : dtypes_) {
    if (id == dtype_id) return nb::object(dtype).release().ptr();
  }
  throw nb::key_error("no dtype with this id");
}

nb::object ArrayReader::Describe(nb::handle array) const {
  PlainArray plain;
  if (!Read(array.ptr(), &plain)) return nb::none();
  PyObject* shape = PyTuple_New(plain.ndim);
  for (int i = 0; shape && i < plain.ndim; ++i) PyTuple_SetItem(shape, i, PyLong_FromLongLong(plain.shape[i]));
  return nb::make_tuple(reinterpret_cast<uintptr_t>(plain.data), nb::steal(shape), plain.dtype_id);
}

bool ArrayReader::MayCountRows(int dtype_id) const { return dtype_id == HVD_INT32 || dtype_id == HVD_INT64; }

nb::object ArrayReader::Hold(nb::handle array) const { return Checked(PyWeakref_NewRef(array.ptr(), nullptr)); }

bool ArrayReader::LiesAt(nb::handle array, const void* data, int64_t) const {
  return reinterpret_cast<const ArrayFields*>(array.ptr())->data == data;
}

// Create the array first, because NumPy's own small allocations are the fastest.
NewArray ArrayReader::Allocate(int dtype_id, int ndim, const int64_t* shape) const {
  const auto create = reinterpret_cast<NewFromDescr>(table_[kNewFromDescr]);
  auto* type = reinterpret_cast<PyTypeObject*>(array_type_.ptr());
  const auto* extents = reinterpret_cast<const intptr_t*>(shape);
  NewArray made;
  made.array = Checked(create(type, WithId(dtype_id), ndim, extents, nullptr, nullptr, 0, nullptr));
  made.data = reinterpret_cast<const ArrayFields*>(made.array.ptr())->data;
  return made;
}

nb::object ArrayReader::Make(NewArray* allocated, int, int, const int64_t*) const {
  return std::move(allocated->array);
}

nb::object ArrayReader::Adopt(void* data, int dtype_id, int ndim, const int64_t* shape) const {
  const auto create = reinterpret_cast<NewFromDescr>(table_[kNewFromDescr]);
  auto* type = reinterpret_cast<PyTypeObject*>(array_type_.ptr());
  const auto* extents = reinterpret_cast<const intptr_t*>(shape);
  PyObject* owner = PyCapsule_New(data, nullptr, FreeMemory);
  if (!owner) {
    Api()->free_buffer(data);
    throw nb::python_error();
  }
  PyObject* array = create(type, WithId(dtype_id), ndim, extents, nullptr, data, kUsable, nullptr);
  if (!array) Py_DECREF(owner);
  nb::object made = Checked(array);
  const auto own = reinterpret_cast<SetBaseObject>(table_[kSetBaseObject]);
  if (own(array, owner) < 0) throw nb::python_error();  // takes the reference even if it fails
  return made;
}

nb::object ArrayReader::EmptyLike(nb::handle array) const {
  PlainArray plain;
  if (!Read(array.ptr(), &plain)) return nb::none();
  return Allocate(plain.dtype_id, plain.ndim, plain.shape).array;
}

void BindArrays(nb::module_& module) {
  nb::class_<PlainArrays>(module, "PlainArrays");
  nb::class_<ArrayReader, PlainArrays>(module, "ArrayReader")
      .def(nb::init<nb::handle, const nb::dict&, nb::handle>(), "array_type"_a, "dtypes"_a, "table"_a)
      .def("read", &ArrayReader::Describe, "array"_a)
      .def("empty_like", &ArrayReader::EmptyLike, "array"_a);
}

}  // namespace hvd_python
