// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/dlpack.h"

#include <hvd/engine.h>

namespace nb = nanobind;

namespace hvd_python::dlpack {
namespace {

// DLPack type codes, the most frequent ones first.
constexpr struct {
  uint8_t code, bits;
  int id;
} kTypes[] = {{2, 32, HVD_FLOAT32},     {4, 16, HVD_BFLOAT16}, {2, 16, HVD_FLOAT16}, {2, 64, HVD_FLOAT64},
              {1, 8, HVD_UINT8},        {0, 8, HVD_INT8},      {1, 16, HVD_UINT16},  {0, 16, HVD_INT16},
              {0, 32, HVD_INT32},       {0, 64, HVD_INT64},    {6, 8, HVD_BOOL},     {10, 8, HVD_FLOAT8_E4M3},
              {12, 8, HVD_FLOAT8_E5M2}, {1, 32, HVD_UINT32},   {1, 64, HVD_UINT64}};

}  // namespace

const ExchangeTable* TableIn(nb::handle capsule) {
  if (capsule.is_none()) return nullptr;
  auto* found = static_cast<const ExchangeTable*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (!found) throw nb::python_error();
  while (found && found->version.major > kMajorVersion) found = found->older;
  return found && found->version.major == kMajorVersion ? found : nullptr;
}

int IdOf(const nb::dlpack::dtype& type) {
  for (const auto& known : kTypes) {
    if (known.code == type.code && known.bits == type.bits && type.lanes == 1) return known.id;
  }
  return -1;
}

nb::dlpack::dtype TypeOf(int id) {
  for (const auto& known : kTypes) {
    if (known.id == id) return {known.code, known.bits, 1};
  }
  return {};
}

}  // namespace hvd_python::dlpack
