// SPDX-License-Identifier: Apache-2.0
// Which of the ready tensors travel together. All of them are independent, so the only questions are whether two can
// share one collective and whether they fit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "agreement/reports.h"

namespace hvd {

// Two tensors can be fused if these agree.
struct FusionKey {
  OpKind kind = OpKind::kAllreduce;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int32_t root = -1;
  uint64_t devices = 0;  // digest of every member's device: a rank with two GPUs may place two tensors apart
  double prescale = 1.0;
  double postscale = 1.0;
  bool direct = false;  // every member's tensor lies where all reach it
  HostAlgorithm algorithm = HostAlgorithm::kDirect;

  bool operator==(const FusionKey& other) const;
};

struct FusionItem {
  FusionKey key;
  size_t bytes = 0;         // what it adds to a batch
  size_t direct_bytes = 0;  // ... if it is direct
  uint32_t group = 0;       // tensors of one group carry the same number; 0 is a tensor of its own
};

struct FusionLimits {
  size_t threshold = 0;               // bytes of one batch; 0 fuses nothing
  bool disable_group_fusion = false;  // a group keeps to itself
};

// The item of a tensor on whose description the members agree.
FusionItem FusionItemOf(const Reports& reports);

class FusionPlanner {
 public:
  // For each item the number of its batch. Batches are numbered in the order of their first items, and each item goes
  // to the first batch that it fits. The result is valid until the next call; its memory is reused.
  const std::vector<uint32_t>& Plan(const std::vector<FusionItem>& items, const FusionLimits& limits);
  // Items in each batch of the last plan.
  const std::vector<uint32_t>& counts() const { return counts_; }

 private:
  struct OpenBatch {
    uint32_t number;
    uint32_t group;
    size_t bytes;
    const FusionKey* key;
  };
  OpenBatch* FindRoom(const FusionItem& item, const FusionLimits& limits);

  std::vector<uint32_t> batch_of_;
  std::vector<uint32_t> counts_;
  std::vector<OpenBatch> open_;
};

}  // namespace hvd
