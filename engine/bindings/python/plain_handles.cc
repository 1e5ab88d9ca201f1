// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/plain_handles.h"

#include <utility>

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd_python {
namespace {

nb::object NotOurs() { return nb::borrow(Py_NotImplemented); }

// Return the number of a handle, or -1, which is never a handle, for objects that are not integers.
int64_t NumberOf(nb::handle number) {
  int overflow = 0;
  if (PyLong_Check(number.ptr())) return PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (!PyIndex_Check(number.ptr())) return -1;
  const nb::object integer = nb::steal(PyNumber_Index(number.ptr()));
  if (!integer.is_valid()) throw nb::python_error();
  return PyLong_AsLongLongAndOverflow(integer.ptr(), &overflow);
}

}  // namespace

nb::object PlainHandles::Start(const Workshop* workshop, const Member& member, nb::handle input,
                               const PlainArray& layout, PlainOperation::Result result, NewArray output, hvd_op* op,
                               std::string name) {
  PlainOperation operation(workshop, member, input, layout, result, std::move(output));
  operation.Submit(member.set_id, op, std::move(name), false);
  operations_.emplace(++last_, std::move(operation));
  return nb::int_(last_);
}

nb::object PlainHandles::Poll(nb::handle number) const {
  const auto found = operations_.find(NumberOf(number));
  return found == operations_.end() ? NotOurs() : nb::bool_(found->second.Poll());
}

nb::object PlainHandles::Synchronize(nb::handle number) {
  auto node = operations_.extract(NumberOf(number));
  if (node.empty()) return NotOurs();
  try {
    return node.mapped().Wait();
  } catch (nb::python_error&) {
    if (node.mapped().unfinished()) operations_.insert(std::move(node));
    throw;
  }
}

void PlainHandles::Clear() {
  // Destroying operations may call Python code that calls this object again, so empty the tables first.
  const auto operations = std::exchange(operations_, {});
  const auto interrupted = std::exchange(interrupted_, {});
  last_ = 0;
}

void BindPlainHandles(nb::module_& module) {
  nb::class_<PlainHandles>(module, "PlainHandles")
      .def(nb::init<>())
      .def("next", &PlainHandles::Next)
      .def("poll", &PlainHandles::Poll, "number"_a.none())
      .def("synchronize", &PlainHandles::Synchronize, "number"_a.none())
      .def("clear", &PlainHandles::Clear);
}

}  // namespace hvd_python
