// SPDX-License-Identifier: Apache-2.0
// A call frame as the operations that the engine gets: one for each argument, named and shaped.
#pragma once

#include <hvd/engine.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/shared/contexts.h"
#include "bindings/xla/frame.h"

namespace hvd::xla {

// Not to be moved once described: the operations point into the other fields.
struct Operations {
  std::vector<hvd_op> ops;
  std::string name;
  std::string group;  // empty: a tensor of its own
  std::vector<std::string> names;
  std::vector<std::vector<int64_t>> shapes;
  std::vector<int64_t> splits;
  std::pair<void*, int64_t> received;  // of an alltoall with splits: the result and its rows
  // Results that only the root keeps (the gradient of a broadcast); elsewhere they become zeros once they are there.
  std::vector<std::pair<void*, size_t>> zeros;

  // Empty if all is well, else what is wrong. `copy` tells calls of one name in one program apart.
  std::string Describe(const Frame& frame, const bindings::Membership& member, int copy);
  // Whether the agreement, which lets ranks differ in rows, was made to refuse that.
  bool RowsMustAgree() const;

 private:
  void DescribeContents(std::string_view contents);
  std::string Shape(const Frame& frame, int64_t i, const bindings::Membership& member);
  std::string ReadSplits(const Frame& frame, const bindings::Membership& member);
};

}  // namespace hvd::xla
