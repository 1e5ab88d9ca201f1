// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/members.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd_python {

void BindMembers(nb::module_& module) {
  nb::class_<Numbering>(module, "Numbering")
      .def(nb::init<>())
      .def("next", &Numbering::Next, "operation"_a)
      .def("restart", &Numbering::Restart);
  nb::class_<Member>(module, "Member")
      .def(
          "__init__",
          [](Member* self, nb::object world, int set_id, int index, std::vector<int64_t> ranks, nb::object numbering) {
            auto* address = reinterpret_cast<hvd_world*>(nb::cast<uintptr_t>(world.attr("address")));
            auto* numbers = nb::cast<Numbering*>(numbering);
            new (self) Member{world, address, set_id, index, std::move(ranks), numbering, numbers};
          },
          "world"_a, "set_id"_a, "index"_a, "ranks"_a, "numbering"_a);
}

}  // namespace hvd_python
