// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/array_calls.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "bindings/python/members.h"
#include "bindings/python/plain_arrays.h"
#include "bindings/python/plain_handles.h"
#include "bindings/python/plain_operation.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd_python {
namespace {

using Result = PlainOperation::Result;

constexpr const char* kNames[] = {"allreduce", "allgather", "broadcast", "alltoall", "reducescatter"};

bool ReadInteger(nb::handle value, int64_t* integer) {
  if (!PyLong_CheckExact(value.ptr())) return false;
  int overflow = 0;
  *integer = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  return !overflow;
}

bool ReadFactor(nb::handle value, double* factor) {
  if (!PyFloat_CheckExact(value.ptr())) return false;
  *factor = PyFloat_AsDouble(value.ptr());
  return true;
}

// Read op and factors of a reduction. Without an op, keep the one in `wanted`. Return false if Python must check them.
bool ReadReduction(nb::handle op, nb::handle prescale, nb::handle postscale, hvd_op* wanted) {
  int64_t number = wanted->reduce_op;
  if (!op.is_none() && !ReadInteger(op, &number)) return false;
  if (number < HVD_AVERAGE || number > HVD_PRODUCT || number == HVD_ADASUM) return false;
  if (!ReadFactor(prescale, &wanted->prescale) || !ReadFactor(postscale, &wanted->postscale)) return false;
  if (wanted->dtype == HVD_BOOL && (number == HVD_AVERAGE || wanted->prescale != 1.0 || wanted->postscale != 1.0))
    return false;
  wanted->reduce_op = static_cast<int32_t>(number);
  return true;
}

// Return the rows that a member gets of a reducescatter: the first `rows % size` members get one more than the others.
int64_t RowsOf(int64_t index, int64_t rows, int64_t size) { return rows / size + (index < rows % size); }

class ArrayCalls {
 public:
  ArrayCalls(nb::object arrays, nb::object handles, nb::callable translate)
      : workshop_{arrays, arrays.is_none() ? nullptr : nb::cast<const PlainArrays*>(arrays), std::move(translate)},
        handles_object_(handles),
        handles_(nb::cast<PlainHandles*>(handles)) {}

  // Each method returns the result if `wait`, else a handle. It returns None if Python must handle the call.

  nb::object Allreduce(const Member* member, nb::handle tensor, bool in_place, bool wait, nb::handle name,
                       nb::handle average, nb::handle op, nb::handle prescale, nb::handle postscale) const {
    PlainArray plain;
    if (!Takes(member, tensor, in_place, wait, &plain) || !average.is_none()) return nb::none();
    hvd_op wanted = Describe(HVD_ALLREDUCE, plain);
    wanted.reduce_op = HVD_AVERAGE;
    if (!ReadReduction(op, prescale, postscale, &wanted)) return nb::none();
    return Run(*member, tensor, plain, &wanted, name, OutputLike(tensor, plain, in_place), wait);
  }

  nb::object Reducescatter(const Member* member, nb::handle tensor, bool wait, nb::handle name, nb::handle op,
                           nb::handle prescale, nb::handle postscale) const {
    PlainArray plain;
    if (!Takes(member, tensor, false, wait, &plain) || plain.ndim == 0) return nb::none();
    hvd_op wanted = Describe(HVD_REDUCESCATTER, plain);
    if (op.is_none() || !ReadReduction(op, prescale, postscale, &wanted) || wanted.reduce_op > HVD_SUM)
      return nb::none();
    int64_t shape[kMaxDimensions];
    std::copy_n(plain.shape, plain.ndim, shape);
    shape[0] = RowsOf(member->index, shape[0], static_cast<int64_t>(member->ranks.size()));
    plain.shape = shape;
    return Run(*member, tensor, plain, &wanted, name, NewLike(plain), wait);
  }

  nb::object Broadcast(const Member* member, nb::handle tensor, bool in_place, bool wait, nb::handle root,
                       nb::handle name) const {
    PlainArray plain;
    int64_t rank;
    if (!Takes(member, tensor, in_place, wait, &plain) || !ReadInteger(root, &rank)) return nb::none();
    if (std::find(member->ranks.begin(), member->ranks.end(), rank) == member->ranks.end()) return nb::none();
    hvd_op wanted = Describe(HVD_BROADCAST, plain);
    wanted.root = static_cast<int32_t>(rank);
    return Run(*member, tensor, plain, &wanted, name, OutputLike(tensor, plain, in_place), wait);
  }

  nb::object Allgather(const Member* member, nb::handle tensor, bool wait, nb::handle name) const {
    PlainArray plain;
    if (!Takes(member, tensor, false, wait, &plain) || plain.ndim == 0) return nb::none();
    hvd_op wanted = Describe(HVD_ALLGATHER, plain);
    return Run(*member, tensor, plain, &wanted, name, {}, wait);
  }

  // The result includes the received splits if the caller passed splits or does not wait.
  nb::object Alltoall(const Member* member, nb::handle tensor, bool wait, nb::handle splits, nb::handle name) const {
    PlainArray plain;
    if (!Takes(member, tensor, false, wait, &plain) || plain.ndim == 0) return nb::none();
    std::vector<int64_t> rows;
    const size_t size = member->ranks.size();
    if (!ReadSplits(splits, size, plain.shape[0], &rows)) return nb::none();
    hvd_op wanted = Describe(HVD_ALLTOALL, plain);
    wanted.splits = rows.data();
    wanted.nsplits = static_cast<int32_t>(rows.size());
    return Run(*member, tensor, plain, &wanted, name, {}, wait, !splits.is_none() || !wait);
  }

 private:
  bool Takes(const Member* member, nb::handle tensor, bool in_place, bool wait, PlainArray* plain) const {
    if (!member || !workshop_.arrays || !workshop_.arrays->Read(tensor.ptr(), plain)) return false;
    if (in_place) return true;
    // Python must handle tensors that autograd records. Only blocking calls need this check, because results of handles
    // never have gradients.
    return workshop_.arrays->CanMake(plain->dtype_id) && !(wait && workshop_.arrays->IsRecorded(tensor));
  }

  static hvd_op Describe(hvd_kind kind, const PlainArray& plain) {
    hvd_op op{};
    op.size = sizeof op;
    op.kind = kind;
    op.dtype = plain.dtype_id;
    op.reduce_op = HVD_SUM;
    op.root = -1;
    op.device = -1;
    op.shape = plain.shape;
    op.ndim = plain.ndim;
    op.input = plain.data;
    op.prescale = op.postscale = 1.0;
    return op;
  }

  NewArray NewLike(const PlainArray& layout) const {
    return workshop_.arrays->Allocate(layout.dtype_id, layout.ndim, layout.shape);
  }

  NewArray OutputLike(nb::handle tensor, const PlainArray& plain, bool in_place) const {
    if (!in_place) return NewLike(plain);
    NewArray output;
    output.data = plain.data;
    output.array = nb::borrow(tensor);
    return output;
  }

  bool ReadSplits(nb::handle splits, size_t size, int64_t rows, std::vector<int64_t>* result) const {
    if (splits.is_none()) {
      if (rows % static_cast<int64_t>(size)) return false;
      result->assign(size, rows / static_cast<int64_t>(size));
      return true;
    }
    if (!ReadNumbers(splits, result) || result->size() != size) return false;
    for (const int64_t split : *result) {
      if (split < 0 || split > rows) return false;
      rows -= split;
    }
    return true;
  }

  // Read a list, a tuple or an array of integers.
  bool ReadNumbers(nb::handle numbers, std::vector<int64_t>* result) const {
    PlainArray plain;
    if (workshop_.arrays->Read(numbers.ptr(), &plain) && plain.ndim == 1) {
      if (!workshop_.arrays->MayCountRows(plain.dtype_id)) return false;
      const int64_t count = plain.shape[0];
      if (plain.dtype_id == HVD_INT32) {
        result->assign(static_cast<int32_t*>(plain.data), static_cast<int32_t*>(plain.data) + count);
      } else {
        result->assign(static_cast<int64_t*>(plain.data), static_cast<int64_t*>(plain.data) + count);
      }
      return true;
    }
    if (!PyList_CheckExact(numbers.ptr()) && !PyTuple_CheckExact(numbers.ptr())) return false;
    for (nb::handle number : numbers) {
      result->emplace_back();
      if (!ReadInteger(number, &result->back())) return false;
    }
    return true;
  }

  // Create the name by which ranks match their operations. Return false if Python must check the name. Call this last,
  // because a number that was taken must be used.
  static bool FullName(hvd_kind kind, nb::handle name, Numbering* numbers, std::string* full) {
    Py_ssize_t length = 0;
    const char* text = nullptr;
    if (!name.is_none()) {
      if (!PyUnicode_CheckExact(name.ptr())) return false;
      text = PyUnicode_AsUTF8AndSize(name.ptr(), &length);
      if (!text) {
        PyErr_Clear();
        return false;
      }
      if (std::memchr(text, 0, static_cast<size_t>(length))) return false;
    }
    if (length == 0) {
      *full = numbers->Next(kNames[kind]);
      return true;
    }
    full->reserve(std::char_traits<char>::length(kNames[kind]) + 1 + static_cast<size_t>(length));
    full->append(kNames[kind]).append(1, '.').append(text, static_cast<size_t>(length));
    return true;
  }

  // Run the operation, or start it and return a handle. `layout` is that of the result; without an output, the engine
  // allocates it.
  nb::object Run(const Member& member, nb::handle tensor, const PlainArray& layout, hvd_op* op, nb::handle name,
                 NewArray output, bool wait, bool with_splits = false) const {
    std::string full;
    if (!FullName(static_cast<hvd_kind>(op->kind), name, member.numbers, &full)) return nb::none();
    Result result = with_splits ? Result::kGatheredAndSplits : Result::kGathered;
    if (output.data || output.array.is_valid()) result = Result::kOutput;
    op->output = output.data;
    if (!wait)
      return handles_->Start(&workshop_, member, tensor, layout, result, std::move(output), op, std::move(full));
    PlainOperation operation(&workshop_, member, tensor, layout, result, std::move(output));
    operation.Submit(member.set_id, op, std::move(full), true);
    try {
      return operation.Wait();
    } catch (nb::python_error&) {
      if (operation.unfinished()) handles_->Keep(std::move(operation));
      throw;
    }
  }

  const Workshop workshop_;
  const nb::object handles_object_;  // keeps `handles_` alive
  PlainHandles* const handles_;
};

}  // namespace

void BindArrayCalls(nb::module_& module) {
  nb::class_<ArrayCalls>(module, "ArrayCalls")
      .def(nb::init<nb::object, nb::object, nb::callable>(), "arrays"_a.none(), "handles"_a, "translate"_a)
      .def("allreduce", &ArrayCalls::Allreduce, "member"_a.none(), "tensor"_a.none(), "in_place"_a, "wait"_a,
           "name"_a.none(), "average"_a.none(), "op"_a.none(), "prescale"_a.none(), "postscale"_a.none())
      .def("reducescatter", &ArrayCalls::Reducescatter, "member"_a.none(), "tensor"_a.none(), "wait"_a, "name"_a.none(),
           "op"_a.none(), "prescale"_a.none(), "postscale"_a.none())
      .def("broadcast", &ArrayCalls::Broadcast, "member"_a.none(), "tensor"_a.none(), "in_place"_a, "wait"_a,
           "root"_a.none(), "name"_a.none())
      .def("allgather", &ArrayCalls::Allgather, "member"_a.none(), "tensor"_a.none(), "wait"_a, "name"_a.none())
      .def("alltoall", &ArrayCalls::Alltoall, "member"_a.none(), "tensor"_a.none(), "wait"_a, "splits"_a.none(),
           "name"_a.none());
}

}  // namespace hvd_python
