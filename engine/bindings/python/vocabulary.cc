// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/vocabulary.h"

#include <hvd/engine.h>

#include <initializer_list>
#include <utility>

namespace nb = nanobind;

namespace hvd_python {
namespace {

void Bind(nb::module_& module, const char* name, std::initializer_list<std::pair<const char*, int>> members) {
  nb::list pairs;
  for (const auto& [member, number] : members) pairs.append(nb::make_tuple(member, number));
  nb::object type = nb::module_::import_("enum").attr("IntEnum")(name, pairs, nb::arg("module") = "horovod._engine");
  module.attr(name) = type;
}

}  // namespace

void BindVocabulary(nb::module_& module) {
  Bind(module, "OpKind",
       {{"ALLREDUCE", HVD_ALLREDUCE},
        {"ALLGATHER", HVD_ALLGATHER},
        {"BROADCAST", HVD_BROADCAST},
        {"ALLTOALL", HVD_ALLTOALL},
        {"REDUCESCATTER", HVD_REDUCESCATTER},
        {"BARRIER", HVD_BARRIER},
        {"JOIN", HVD_JOIN},
        {"ADD_PROCESS_SET", HVD_ADD_PROCESS_SET},
        {"REMOVE_PROCESS_SET", HVD_REMOVE_PROCESS_SET}});
  Bind(module, "ReduceOp",
       {{"AVERAGE", HVD_AVERAGE},
        {"SUM", HVD_SUM},
        {"ADASUM", HVD_ADASUM},
        {"MIN", HVD_MIN},
        {"MAX", HVD_MAX},
        {"PRODUCT", HVD_PRODUCT}});
#define HVD_MEMBER(id, number, name, bytes, floating) {&#id[4], number},  // without the prefix HVD_
  Bind(module, "DType", {HVD_DTYPES(HVD_MEMBER)});
#undef HVD_MEMBER
  nb::list table;
#define HVD_ROW(id, number, name, bytes, floating) table.append(nb::make_tuple(name, bytes, bool(floating)));
  HVD_DTYPES(HVD_ROW)
#undef HVD_ROW
  module.attr("DTYPES") = nb::tuple(table);
}

}  // namespace hvd_python
