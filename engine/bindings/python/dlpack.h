// SPDX-License-Identifier: Apache-2.0
// What DLPack 1.x defines and we need: its tensors, the table of functions that a framework offers, types by our ids.
#pragma once

#include <nanobind/ndarray.h>  // DLTensor

#include <cstdint>

namespace hvd_python::dlpack {

using Tensor = nanobind::dlpack::dltensor;

constexpr uint32_t kMajorVersion = 1;
constexpr int32_t kHostMemory = 1;

struct Version {
  uint32_t major, minor;
};

struct Managed {  // DLManagedTensor, before 1.0
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

struct ManagedVersioned {  // DLManagedTensorVersioned
  Version version;
  void* context;
  void (*deleter)(ManagedVersioned*);
  uint64_t flags;
  Tensor tensor;
};

struct ExchangeTable {  // DLPackExchangeAPI
  Version version;
  const ExchangeTable* older;
  void* allocate;
  void* managed_from_object;
  int (*managed_to_object)(void* managed, void** object);
  int (*describe)(void* object, void* description);  // nullptr: not provided
  void* current_stream;
};

// The table in a capsule; nullptr for None or where there is none of our version.
const ExchangeTable* TableIn(nanobind::handle capsule);

int IdOf(const nanobind::dlpack::dtype& type);  // hvd_dtype, or -1
nanobind::dlpack::dtype TypeOf(int id);

}  // namespace hvd_python::dlpack
