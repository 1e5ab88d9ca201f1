// SPDX-License-Identifier: Apache-2.0
// Decides which ready tensors are fused. Ready tensors are independent, so the only questions are whether two of them
// can share a collective and whether they fit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "agreement/reports.h"

namespace hvd {

// Properties that must be equal for two tensors to be fused.
struct FusionKey {
  OpKind kind = OpKind::kAllreduce;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int32_t root = -1;
  // Digest of all members' devices. A rank with two GPUs may have two tensors on different ones, which cannot be fused.
  uint64_t devices = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  bool direct = false;  // every member's tensor is in memory that all members reach
  HostAlgorithm algorithm = HostAlgorithm::kDirect;

  bool operator==(const FusionKey& other) const;
};

struct FusionItem {
  FusionKey key;
  size_t bytes = 0;         // bytes that the tensor adds to a batch
  size_t direct_bytes = 0;  // bytes that the tensor adds to a batch if it is direct
  uint32_t group = 0;       // equal for tensors of one group; 0: no group
};

struct FusionLimits {
  size_t threshold = 0;               // limit for the bytes of one batch; 0 fuses nothing
  bool disable_group_fusion = false;  // do not fuse a group with other tensors
};

// Return the item of a tensor on whose description the members agree.
FusionItem FusionItemOf(const Reports& reports);

class FusionPlanner {
 public:
  // Return the batch number of each item. Batches are numbered in the order of their first items, and each item goes to
  // the first batch that it fits. The result is valid until the next call; its memory is reused.
  const std::vector<uint32_t>& Plan(const std::vector<FusionItem>& items, const FusionLimits& limits);
  // Number of items in each batch of the last plan.
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
