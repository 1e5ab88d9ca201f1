// SPDX-License-Identifier: Apache-2.0
#include "core/express_run.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/row_share.h"
#include "collectives/kernels.h"
#include "collectives/machine.h"
#include "core/execution.h"
#include "memory/output_pool.h"

namespace hvd {
namespace {

constexpr size_t kMostRead = size_t{64} << 10;     // largest contribution that others read
constexpr size_t kLeastPushed = size_t{16} << 10;  // smaller outputs are never in the arena
constexpr size_t kMostPushed = size_t{512} << 10;  // larger outputs hardly gain

bool IsReduction(OpKind kind) { return kind == OpKind::kAllreduce || kind == OpKind::kReducescatter; }
bool HasOutputOfItsOwn(OpKind kind) { return kind == OpKind::kAllgather || kind == OpKind::kAlltoall; }

Flat FlatOf(const std::byte* data, size_t bytes, bool wide) {
  Flat flat;
  flat.Add(const_cast<std::byte*>(data), bytes, wide);
  return flat;
}

void Copy(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes && to != from) std::memcpy(to, from, bytes);
}

}  // namespace

bool ExpressRun::CountsAsRound() const {
  const Request& request = entry_.request;
  if (!request.group.empty()) return false;
  switch (request.kind) {
    case OpKind::kAllreduce:
      // The fast path sums all parts in rank order, so the same tensor must be summed in that order on the normal path
      // too.
      return SumsInOrder(entry_.algorithm) && request.op != ReduceOp::kAdasum && request.Bytes() <= kMostRead;
    case OpKind::kBroadcast:
    case OpKind::kReducescatter:
      return request.Bytes() <= kMostRead;
    case OpKind::kAllgather:
      return entry_.sizes.size() == members_ && OutputBytes(me_) <= kMostPushed;
    case OpKind::kAlltoall:
      return entry_.sizes.size() == 1 + members_ * members_ &&
             static_cast<size_t>(entry_.sizes[0]) * members_ * entry_.request.RowBytes() <= kMostPushed;
    default:
      return false;
  }
}

bool ExpressRun::IsPushed() const {
  if (!HasOutputOfItsOwn(entry_.request.kind)) return false;
  size_t least = SIZE_MAX;
  for (size_t j = 0; j < members_; ++j) least = std::min(least, OutputBytes(j));
  return least >= kLeastPushed;
}

size_t ExpressRun::BytesFrom(size_t member) const {
  const Request& request = entry_.request;
  switch (request.kind) {
    case OpKind::kBroadcast:
      return static_cast<int>(member) == root_ ? request.Bytes() : 0;
    case OpKind::kAllgather:
      return static_cast<size_t>(entry_.sizes[member]) * entry_.request.RowBytes();
    case OpKind::kAlltoall:
      return OffsetOut(member, members_);
    default:
      return request.Bytes();
  }
}

ExpressRun::Share ExpressRun::ShareOf(size_t from, size_t to) const {
  const Request& request = entry_.request;
  if (request.kind == OpKind::kAlltoall) {
    return {OffsetOut(from, to), static_cast<size_t>(Rows(from, to)) * request.RowBytes()};
  }
  if (request.kind != OpKind::kReducescatter) return {0, BytesFrom(from)};
  const RowShare share = ShareOfRows(request.shape[0], static_cast<int64_t>(members_), static_cast<int64_t>(to));
  return {static_cast<size_t>(share.begin) * request.RowBytes(), static_cast<size_t>(share.rows) * request.RowBytes()};
}

const std::byte* ExpressRun::OurShare(const std::vector<Express::Piece>& parts, size_t from) const {
  const bool whole = relayed_ || from == me_ || parts[from].size == Express::kInPlace;
  return parts[from].data + (whole ? ShareOf(from, me_).begin : 0);
}

size_t ExpressRun::MostBytes() const {
  size_t most = 0;
  for (size_t j = 0; j < members_; ++j) most = std::max(most, BytesFrom(j));
  return most;
}

int64_t ExpressRun::OutputRows(size_t member) const {
  if (entry_.request.kind == OpKind::kAllgather) {
    return std::accumulate(entry_.sizes.begin(), entry_.sizes.end(), int64_t{0});
  }
  int64_t rows = 0;
  for (size_t j = 0; j < members_; ++j) rows += Rows(j, member);
  return rows;
}

size_t ExpressRun::OutputBytes(size_t member) const {
  return static_cast<size_t>(OutputRows(member)) * entry_.request.RowBytes();
}

size_t ExpressRun::OffsetIn(size_t owner, size_t from) const {
  int64_t rows = 0;
  const bool gathers = entry_.request.kind == OpKind::kAllgather;
  for (size_t j = 0; j < from; ++j) rows += gathers ? entry_.sizes[j] : Rows(j, owner);
  return static_cast<size_t>(rows) * entry_.request.RowBytes();
}

size_t ExpressRun::OffsetOut(size_t from, size_t to) const {
  if (entry_.request.kind != OpKind::kAlltoall) return 0;
  int64_t rows = 0;
  for (size_t j = 0; j < to; ++j) rows += Rows(from, j);
  return static_cast<size_t>(rows) * entry_.request.RowBytes();
}

void ExpressRun::Write(const Operation& operation, std::byte* to) const {
  const Request& request = entry_.request;
  const size_t bytes = BytesFrom(me_);
  if (IsReduction(request.kind)) {
    Gather(FlatOf(operation.input, bytes, operation.wide), 0, bytes, request.dtype, request.prescale, to);
  } else {
    Copy(to, operation.input, bytes);
  }
}

const std::byte* ExpressRun::InInput(const Operation& operation) const {
  const bool as_it_is = !IsReduction(entry_.request.kind) || (entry_.request.prescale == 1.0 && !operation.wide);
  return as_it_is ? operation.input : nullptr;
}

void ExpressRun::Reduce(Operation* operation, const std::vector<Express::Piece>& parts) const {
  const Request& request = entry_.request;
  const size_t bytes = ShareOf(me_, me_).bytes;
  std::vector<const void*> sources;
  for (size_t j = 0; j < members_; ++j) sources.push_back(OurShare(parts, j));
  std::vector<std::byte> narrow(operation->wide ? bytes : 0);
  std::byte* result = operation->wide ? narrow.data() : operation->output;
  const Reduction reduction = ReductionOf(request, members_);
  const size_t count = bytes / SizeOf(request.dtype);
  if (hosts_) {
    std::vector<std::byte> partials;
    CombineByHosts(reduction, result, sources.data(), *hosts_, count, &partials);
  } else {
    Combine(reduction, result, nullptr, sources.data(), static_cast<int>(members_), count);
  }
  if (operation->wide) Scatter(result, FlatOf(operation->output, bytes, true), 0, bytes, request.dtype);
}

void ExpressRun::Assemble(Operation* operation, const std::vector<Express::Piece>& parts) const {
  const OpKind kind = entry_.request.kind;
  if (IsReduction(kind)) return Reduce(operation, parts);
  if (kind == OpKind::kBroadcast) {
    const bool in_place = static_cast<int>(me_) == root_ && operation->input == operation->output;
    if (!in_place) Copy(operation->output, parts[static_cast<size_t>(root_)].data, MostBytes());
    return;
  }
  TellSplits(operation);
  std::byte* const output = OutputOf(*operation, OutputRows(me_), nullptr);
  for (size_t j = 0; j < members_; ++j) {
    Copy(output + OffsetIn(me_, j), OurShare(parts, j), ShareOf(j, me_).bytes);
  }
}

void ExpressRun::TellSplits(Operation* operation) const {
  if (entry_.request.kind != OpKind::kAlltoall) return;
  std::vector<int64_t>& splits = operation->handle->received_splits;
  splits.resize(members_);
  for (size_t j = 0; j < members_; ++j) splits[j] = Rows(j, me_);
}

std::byte* ExpressRun::PlaceForPushes(Operation* operation, const std::shared_ptr<Arena>& arena) const {
  if (operation->output || operation->allocate) return nullptr;
  TellSplits(operation);
  std::byte* const output = OutputOf(*operation, OutputRows(me_), arena);
  return arena->OffsetOf(output, operation->handle->outputs[operation->index].bytes) < 0 ? nullptr : output;
}

void ExpressRun::Push(const Operation& operation, const std::vector<Express::Piece>& outputs) const {
  // Start with a different member on each rank, so that they do not get in each other's way.
  for (size_t step = 1; step <= members_; ++step) {
    const size_t j = (me_ + step) % members_;
    const Share share = ShareOf(me_, j);
    Copy(const_cast<std::byte*>(outputs[j].data) + OffsetIn(j, me_), operation.input + share.begin, share.bytes);
  }
}

}  // namespace hvd
