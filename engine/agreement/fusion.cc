// SPDX-License-Identifier: Apache-2.0
// First-fit fusion in one pass over the ready tensors.
#include "agreement/fusion.h"

#include <limits>

namespace hvd {
namespace {

bool IsFusable(OpKind kind) {
  switch (kind) {
    case OpKind::kAllreduce:
    case OpKind::kAllgather:
    case OpKind::kBroadcast:
    case OpKind::kReducescatter:
      return true;
    case OpKind::kAlltoall:
    case OpKind::kBarrier:
    case OpKind::kJoin:
    case OpKind::kAddProcessSet:
    case OpKind::kRemoveProcessSet:
    case OpKind::kSend:
    case OpKind::kReceive:
      return false;
  }
  return false;
}

size_t SaturatingAdd(size_t a, size_t b) {
  size_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<size_t>::max() : sum;
}

}  // namespace

bool FusionKey::operator==(const FusionKey& other) const {
  return kind == other.kind && dtype == other.dtype && op == other.op && root == other.root &&
         devices == other.devices && SameFactor(prescale, other.prescale) && SameFactor(postscale, other.postscale) &&
         direct == other.direct && algorithm == other.algorithm;
}

FusionItem FusionItemOf(const Reports& reports) {
  const Request& agreed = reports.First();
  FusionItem item;
  item.key = {agreed.kind,     agreed.dtype,     agreed.op, agreed.root,           0,
              agreed.prescale, agreed.postscale, false,     HostAlgorithm::kDirect};
  item.key.direct = reports.AllPlaced();
  item.bytes = agreed.kind == OpKind::kAllgather ? 0 : agreed.Bytes();
  for (size_t member = 0; member < reports.members(); ++member) {
    const Request& request = reports.Has(member) ? reports.Of(member) : agreed;
    item.key.devices = item.key.devices * 1099511628211u + static_cast<uint32_t>(request.device);
    if (agreed.kind == OpKind::kAllgather) item.bytes = SaturatingAdd(item.bytes, request.Bytes());
  }
  // Direct tensors on a device do not pass through slots. They count as no bytes and are fused without limit, because
  // fewer batches need fewer turns on the device.
  item.direct_bytes = agreed.device >= 0 ? 0 : item.bytes;
  return item;
}

const std::vector<uint32_t>& FusionPlanner::Plan(const std::vector<FusionItem>& items, const FusionLimits& limits) {
  batch_of_.clear();
  counts_.clear();
  open_.clear();
  for (const FusionItem& item : items) {
    if (OpenBatch* batch = FindRoom(item, limits)) {
      batch->bytes += item.bytes;
      ++counts_[batch->number];
      batch_of_.push_back(batch->number);
      continue;
    }
    const auto number = static_cast<uint32_t>(counts_.size());
    counts_.push_back(1);
    batch_of_.push_back(number);
    const bool has_room = item.bytes <= limits.threshold && limits.threshold > 0 && IsFusable(item.key.kind);
    if (has_room) open_.push_back({number, item.group, item.bytes, &item.key});
  }
  return batch_of_;
}

FusionPlanner::OpenBatch* FusionPlanner::FindRoom(const FusionItem& item, const FusionLimits& limits) {
  if (item.bytes > limits.threshold) return nullptr;
  for (OpenBatch& batch : open_) {
    const bool may_mix = !limits.disable_group_fusion || batch.group == item.group;
    if (may_mix && batch.bytes <= limits.threshold - item.bytes && *batch.key == item.key) return &batch;
  }
  return nullptr;
}

}  // namespace hvd
