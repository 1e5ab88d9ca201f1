// SPDX-License-Identifier: Apache-2.0
// The parts of DLPack 1.x that we need: its tensors, a framework's function table, and conversion to our dtype ids.
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

struct Managed {  // DLManagedTensor, used before version 1.0
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

// Return the table in a capsule; nullptr for None or if it has no table of our version.
const ExchangeTable* TableIn(nanobind::handle capsule);

int IdOf(const nanobind::dlpack::dtype& type);  // returns an hvd_dtype, or -1
nanobind::dlpack::dtype TypeOf(int id);

}  // namespace hvd_python::dlpack
