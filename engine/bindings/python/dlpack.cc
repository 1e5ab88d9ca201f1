// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/dlpack.h"

namespace nb = nanobind;

namespace hvd_python::dlpack {
namespace {

// The most frequent ones first.
constexpr struct {
  uint8_t code, bits;
  int id;
} kTypes[] = {{2, 32, 7}, {4, 16, 10}, {2, 16, 6}, {2, 64, 8},  {1, 8, 0},   {0, 8, 1},   {1, 16, 2}, {0, 16, 3},
              {0, 32, 4}, {0, 64, 5},  {6, 8, 9},  {10, 8, 11}, {12, 8, 12}, {1, 32, 13}, {1, 64, 14}};

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
