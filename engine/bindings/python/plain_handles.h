// SPDX-License-Identifier: Apache-2.0
// The numbers that users hold for operations under way, and those operations that are on plain arrays. Behind the GIL.
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

  // The next number, for an operation that somebody else keeps.
  int64_t Next() { return ++last_; }

  // Submits an operation; its number.
  nanobind::object Start(const Workshop* workshop, const Member& member, nanobind::handle input,
                         const PlainArray& layout, PlainOperation::Result result, NewArray output, hvd_op* op,
                         std::string name);

  // Both: NotImplemented for a number that is not of ours.
  nanobind::object Poll(nanobind::handle number) const;
  nanobind::object Synchronize(nanobind::handle number);

  // Holds on to what the engine may use until it stops.
  void Keep(PlainOperation&& interrupted) { interrupted_.push_back(std::move(interrupted)); }

  // Forget everything and number from 1 again. Only after the engine has stopped.
  void Clear();

 private:
  std::unordered_map<int64_t, PlainOperation> operations_;
  std::vector<PlainOperation> interrupted_;
  int64_t last_ = 0;
};

void BindPlainHandles(nanobind::module_& module);

}  // namespace hvd_python
