// SPDX-License-Identifier: Apache-2.0
// Conversion of a call frame to engine operations: one for each argument, with its name and shape.
#pragma once

#include <hvd/engine.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/shared/contexts.h"
#include "bindings/xla/frame.h"

namespace hvd::xla {

// Operations of one call. Do not move the object after Describe, because the operations point into the other fields.
struct Operations {
  std::vector<hvd_op> ops;
  std::string name;
  std::string group;  // empty for a single tensor
  std::vector<std::string> names;
  std::vector<std::vector<int64_t>> shapes;
  std::vector<int64_t> splits;
  std::pair<void*, int64_t> received;  // for an alltoall with splits: its result and the number of its rows
  // Results that only the root keeps (the gradient of a broadcast); all other ranks set them to zero at the end.
  std::vector<std::pair<void*, size_t>> zeros;

  // Fill in the operations. Return an empty text, or what is wrong. `copy` distinguishes calls of one name in one
  // program.
  std::string Describe(const Frame& frame, const bindings::Membership& member, int copy);
  // Return true if the operations were described so that a difference in rows is an error, which negotiation would
  // otherwise allow.
  bool RowsMustAgree() const;

 private:
  void DescribeContents(std::string_view contents);
  std::string Shape(const Frame& frame, int64_t i, const bindings::Membership& member);
  std::string ReadSplits(const Frame& frame, const bindings::Membership& member);
};

}  // namespace hvd::xla
