// SPDX-License-Identifier: Apache-2.0
// Handles of operations for users, and the running operations on simple arrays. All methods need the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/python/plain_operation.h"

namespace hvd_python {

class PlainHandles {
 public:
  PlainHandles() = default;
  PlainHandles(const PlainHandles&) = delete;
  PlainHandles& operator=(const PlainHandles&) = delete;

  // Return the next handle, for an operation that other code keeps.
  int64_t Next() { return ++last_; }

  // Submit an operation and return its handle.
  nanobind::object Start(const Workshop* workshop, const Member& member, nanobind::handle input,
                         const PlainArray& layout, PlainOperation::Result result, NewArray output, hvd_op* op,
                         std::string name);

  // Both return NotImplemented for a handle that is not in this table.
  nanobind::object Poll(nanobind::handle number) const;
  nanobind::object Synchronize(nanobind::handle number);

  // Keep an interrupted operation and its arrays, which the engine may use until it stops.
  void Keep(PlainOperation&& interrupted) { interrupted_.push_back(std::move(interrupted)); }

  // Remove everything and number from 1 again. Call only after the engine has stopped.
  void Clear();

 private:
  std::unordered_map<int64_t, PlainOperation> operations_;
  std::vector<PlainOperation> interrupted_;
  int64_t last_ = 0;
};

void BindPlainHandles(nanobind::module_& module);

}  // namespace hvd_python
