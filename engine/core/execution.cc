// SPDX-License-Identifier: Apache-2.0
#include "core/execution.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <utility>

#include "base/row_share.h"
#include "collectives/adasum.h"
#include "collectives/allgather.h"
#include "collectives/allreduce.h"
#include "collectives/alltoall.h"
#include "collectives/between_hosts.h"
#include "collectives/broadcast.h"
#include "collectives/direct.h"
#include "collectives/hierarchical.h"
#include "collectives/hierarchical_allgather.h"
#include "collectives/hierarchical_broadcast.h"
#include "collectives/hierarchical_reducescatter.h"
#include "collectives/joined_alltoall.h"
#include "collectives/push.h"
#include "collectives/reducescatter.h"
#include "collectives/stream_copy.h"
#include "collectives/widened.h"
#include "core/device_execution.h"
#include "core/foreign_execution.h"
#include "memory/output_pool.h"

namespace hvd {
namespace {

bool IsInteger(DType dtype) { return !hvd_is_floating(static_cast<int32_t>(dtype)); }
bool IsNarrowInteger(DType dtype) { return IsInteger(dtype) && SizeOf(dtype) < sizeof(int64_t); }

}  // namespace

std::byte* OutputOf(Operation& operation, int64_t rows, const std::shared_ptr<Arena>& arena) {
  Handle::Output& output = operation.handle->outputs[operation.index];
  output.rows = rows;
  const size_t bytes = static_cast<size_t>(rows) * operation.request.RowBytes();
  const size_t had = std::exchange(output.bytes, bytes);
  if (operation.output) return operation.output;
  if (operation.allocate) {
    std::vector<int64_t> shape = operation.request.shape;
    shape[0] = rows;
    void* data = operation.allocate(shape);
    if (!data) throw std::bad_alloc();
    return static_cast<std::byte*>(data);
  }
  // This output was allocated when the fast path was tried.
  if (output.data && had == bytes) return static_cast<std::byte*>(output.data);
  FreeOutput(output.data);
  output.data = AllocateOutput(bytes, arena);
  if (!output.data) throw std::bad_alloc();
  return static_cast<std::byte*>(output.data);
}

Reduction ReductionOf(const Request& request, size_t members) {
  Reduction reduction{request.dtype, request.op, request.prescale, request.postscale, 1};
  if (request.op == ReduceOp::kAverage) {
    reduction.op = ReduceOp::kSum;
    if (IsNarrowInteger(request.dtype) || (IsInteger(request.dtype) && request.postscale == 1.0)) {
      reduction.divisor = static_cast<int64_t>(members);  // 49 * (1.0 / 49) is less than 1 and would be truncated to 0
    } else {
      reduction.postscale /= static_cast<double>(members);
    }
  }
  return reduction;
}

namespace {

// Return a machine that works on all members' tensors in shared memory, or null if an offset that the leader sent lies
// outside of an arena.
std::unique_ptr<Machine> PrepareDirect(ProcessSet& set, const Entries& entries, const Reduction& reduction) {
  std::vector<Flat> views(set.ranks().size());
  for (const auto& entry : entries) {
    const size_t bytes = entry->request.Bytes();
    if (!set.all_in_memory() || entry->sizes.size() != views.size() || bytes > Arena::kExtent) return nullptr;
    for (size_t j = 0; j < views.size(); ++j) {
      const auto place = static_cast<size_t>(entry->sizes[j]);
      if (place > Arena::kExtent - bytes) return nullptr;
      views[j].Add(set.arena_of(static_cast<int>(j)) + place, bytes);
    }
  }
  return std::make_unique<DirectAllreduce>(set.flat().there.get(), std::move(views), reduction);
}

// Return a machine for an allreduce in which members forward partial sums.
std::unique_ptr<Machine> MakeAllreduceOfPartialSums(ProcessSet& set, HostAlgorithm algorithm, Flat in, Flat out,
                                                    const Reduction& reduction) {
  if (reduction.IsWidened()) {
    const auto make = [&](std::vector<Flat> wide_ins, Flat wide_out, const Reduction& sum) {
      return MakeAllreduceOfPartialSums(set, algorithm, std::move(wide_ins[0]), std::move(wide_out), sum);
    };
    return std::make_unique<WidenedAverage>(std::vector<Flat>{std::move(in)}, std::move(out), reduction,
                                            WidenedAverage::Result::kReplacesInput, make);
  }
  if (!set.inside()) {
    return std::make_unique<AllreduceBetweenHosts>(algorithm, &set.flat(), std::move(in), std::move(out), reduction);
  }
  return std::make_unique<HierarchicalAllreduce>(set.inside(), set.across(), algorithm, std::move(in), std::move(out),
                                                 reduction);
}

Status PrepareAllreduce(ProcessSet& set, const Settings& settings, const Entries& entries, RunningBatch* batch) {
  size_t missing = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!batch->operations[i]) missing += entries[i]->request.Bytes();
  }
  batch->zeros.resize(missing);
  std::byte* zeros = batch->zeros.data();
  Flat in, out;
  std::vector<Range> tensors;
  for (size_t i = 0; i < entries.size(); ++i) {
    const size_t bytes = entries[i]->request.Bytes();
    if (bytes) tensors.push_back({in.size(), bytes});
    if (const Operation* operation = batch->operations[i].get()) {
      in.Add(const_cast<std::byte*>(operation->input), bytes, operation->wide);
      out.Add(operation->output, bytes, operation->wide);
    } else {
      in.Add(zeros, bytes);
      out.Add(zeros, bytes);
      zeros += bytes;
    }
  }
  const Request& first = entries[0]->request;
  const Reduction reduction = ReductionOf(first, set.ranks().size());
  const size_t bytes = in.size();
  out.set_cold(OutgrowsCaches(bytes * set.ranks().size()));
  Lane* lane = set.flat().there.get();
  const HostAlgorithm algorithm = entries[0]->algorithm;  // tensors that differ in this are never fused
  const bool direct = algorithm == HostAlgorithm::kDirect;
  if (!direct && !set.inside() && !set.apart()) {
    return Status::Failed("the leader named an algorithm between hosts that cannot run among these");
  }
  if (reduction.op == ReduceOp::kAdasum) {
    batch->machine = std::make_unique<Adasum>(&set.flat(), std::move(in), std::move(out), reduction, tensors);
  } else if (direct && bytes * (set.ranks().size() - 1) <= settings.small_bytes && bytes <= lane->slot_bytes()) {
    batch->machine =
        std::make_unique<SmallAllreduce>(lane, std::move(in), std::move(out), reduction, set.members_by_host());
  } else if (batch->placed) {
    batch->machine = PrepareDirect(set, entries, reduction);
    batch->direct = true;
    if (!batch->machine) return Status::Failed("the leader named places in shared memory that do not exist");
  } else if (set.inside() || !direct) {
    batch->machine = MakeAllreduceOfPartialSums(set, algorithm, std::move(in), std::move(out), reduction);
  } else {
    batch->machine = std::make_unique<Allreduce>(&set.flat(), std::move(in), std::move(out), reduction);
  }
  return Status::Ok();
}

int64_t RowsOf(const Entry& entry) { return std::accumulate(entry.sizes.begin(), entry.sizes.end(), int64_t{0}); }

// Return true if peers may write into the outputs. All members get the same answer.
bool MayPushAllgather(ProcessSet& set, const Entries& entries) {
  const size_t least = set.single_copy_bytes();
  return Places::Fit(*set.flat().there, entries.size()) &&
         std::all_of(entries.begin(), entries.end(), [&](const auto& entry) {
           return static_cast<size_t>(RowsOf(*entry)) * entry->request.RowBytes() >= least;
         });
}

// Return the grid of hosts if an operation that only moves `bytes` should go through it, else null. All members get the
// same answer.
const HostGrid* GridFor(const ProcessSet& set, const Settings& settings, size_t bytes, size_t least) {
  const HostGrid* grid = set.grid_for_moves();
  return grid && (bytes >= least || settings.hierarchical_allgather == 1) ? grid : nullptr;
}

Status PrepareAllgather(ProcessSet& set, const Settings& settings, const Entries& entries, RunningBatch* batch) {
  const bool may_push = MayPushAllgather(set, entries);
  Flat in;
  std::vector<Flat> outs(set.ranks().size());
  std::vector<int64_t> places;
  std::vector<Range> own_rows;
  for (size_t i = 0; i < entries.size(); ++i) {
    Operation& operation = *batch->operations[i];
    const size_t row = operation.request.RowBytes();
    const int64_t rows = RowsOf(*entries[i]);
    std::byte* const out = OutputOf(operation, rows, may_push ? set.own_arena() : nullptr);
    if (may_push) {
      places.push_back(Places::In(set.arena_of(set.me()), {out, static_cast<size_t>(rows) * row},
                                  {operation.input, operation.request.Bytes()}));
    }
    in.Add(const_cast<std::byte*>(operation.input), operation.request.Bytes());
    size_t begin = 0;
    for (size_t j = 0; j < outs.size(); ++j) {
      const size_t bytes = static_cast<size_t>(entries[i]->sizes[j]) * row;
      outs[j].Add(out + begin, bytes);
      if (static_cast<int>(j) == set.me()) own_rows.push_back({begin, bytes});
      begin += bytes;
    }
  }
  Lane* lane = set.flat().there.get();
  size_t bytes = 0;
  for (const Flat& out : outs) bytes += out.size();
  if (may_push) {
    batch->machine = std::make_unique<PushAllgather>(
        lane, std::move(in), std::move(outs), Places(lane, set.arenas(), std::move(places)), std::move(own_rows));
  } else if (const HostGrid* grid = GridFor(set, settings, bytes, kHierarchicalAllgatherBytes)) {
    batch->machine = std::make_unique<HierarchicalAllgather>(*grid, in, outs);
  } else {
    batch->machine = std::make_unique<Allgather>(lane, std::move(in), std::move(outs));
  }
  return Status::Ok();
}

Status PrepareBroadcast(ProcessSet& set, const Settings& settings, const Entries& entries, RunningBatch* batch) {
  Flat in, out;
  for (const auto& operation : batch->operations) {
    in.Add(const_cast<std::byte*>(operation->input), operation->request.Bytes());
    out.Add(operation->output, operation->request.Bytes());
  }
  const int root = set.IndexOf(entries[0]->request.root);
  if (const HostGrid* grid = GridFor(set, settings, out.size(), kHierarchicalBroadcastBytes)) {
    batch->machine = std::make_unique<HierarchicalBroadcast>(*grid, root, std::move(in), std::move(out));
  } else {
    batch->machine =
        std::make_unique<Broadcast>(set.flat().there.get(), root, std::move(in), std::move(out), set.brisk());
  }
  return Status::Ok();
}

std::unique_ptr<Machine> MakeHierarchicalReducescatter(const HostGrid& grid, const std::vector<Flat>& ins, Flat out,
                                                       const Reduction& reduction) {
  if (!reduction.IsWidened()) {
    return std::make_unique<HierarchicalReducescatter>(grid, ins, std::move(out), reduction);
  }
  const auto make = [&](const std::vector<Flat>& wide_ins, Flat wide_out, const Reduction& sum) {
    return MakeHierarchicalReducescatter(grid, wide_ins, std::move(wide_out), sum);
  };
  return std::make_unique<WidenedAverage>(ins, std::move(out), reduction, WidenedAverage::Result::kApart, make);
}

Status PrepareReducescatter(ProcessSet& set, const Entries& entries, RunningBatch* batch) {
  const int64_t members = static_cast<int64_t>(set.ranks().size());
  std::vector<Flat> ins(set.ranks().size());
  Flat out;
  for (const auto& operation : batch->operations) {
    const int64_t rows = operation->request.shape[0];
    const size_t row = operation->request.RowBytes();
    std::byte* from = const_cast<std::byte*>(operation->input);
    for (int64_t j = 0; j < members; ++j) {
      const size_t bytes = static_cast<size_t>(ShareOfRows(rows, members, j).rows) * row;
      ins[j].Add(from, bytes);
      from += bytes;
      if (j == set.me()) out.Add(operation->output, bytes);
    }
  }
  const Reduction reduction = ReductionOf(entries[0]->request, set.ranks().size());
  // Choose independently of the size, because the order of additions must not depend on which tensors were fused.
  const HostGrid* grid = set.grid_for_sums();
  if (grid && HierarchicalReducescatter::Fits(*grid)) {
    batch->machine = MakeHierarchicalReducescatter(*grid, ins, std::move(out), reduction);
  } else {
    batch->machine = std::make_unique<Reducescatter>(set.flat().there.get(), std::move(ins), std::move(out), reduction);
  }
  return Status::Ok();
}

Status PrepareAlltoall(ProcessSet& set, const Entries& entries, RunningBatch* batch) {
  Operation* operation = batch->operations[0].get();
  Lane* lane = set.flat().there.get();
  const size_t row = operation->request.RowBytes(), members = set.ranks().size();
  // Size of the largest piece, which all members know.
  const size_t largest = static_cast<size_t>(entries[0]->sizes.at(0)) * row;
  const bool may_push = largest >= set.single_copy_bytes() / members && Places::Fit(*lane, 1 + members);
  auto allocate = [operation, arena = may_push ? set.own_arena() : nullptr](const std::vector<int64_t>& received) {
    int64_t rows = 0;
    for (int64_t from : received) rows += from;
    operation->handle->received_splits = received;
    return OutputOf(*operation, rows, arena);
  };
  const HostGrid* grid = set.grid_for_moves();
  if (grid && JoinedAlltoall::Pays(*grid, row, entries[0]->sizes.at(0))) {
    batch->machine = std::make_unique<JoinedAlltoall>(*grid, operation->input, operation->request.splits, row,
                                                      entries[0]->sizes.at(0), std::move(allocate));
    return Status::Ok();
  }
  batch->machine =
      std::make_unique<Alltoall>(lane, operation->input, operation->request.splits, row, entries[0]->sizes.at(0),
                                 std::move(allocate), may_push ? set.arenas() : std::vector<std::byte*>());
  return Status::Ok();
}

}  // namespace

Status Prepare(ProcessSet& set, const Settings& settings, const Entries& entries, RunningBatch* batch) {
  const bool on_device = entries[0]->request.device >= 0;
  return on_device ? PrepareOnDevice(set, settings, entries, batch)
                   : PrepareOnHostMemory(set, settings, entries, batch);
}

Status PrepareOnHostMemory(ProcessSet& set, const Settings& settings, const Entries& entries, RunningBatch* batch) {
  if (PrepareForeign(set, settings, entries, batch)) return Status::Ok();
  switch (entries[0]->request.kind) {
    case OpKind::kAllreduce:
      return PrepareAllreduce(set, settings, entries, batch);
    case OpKind::kAllgather:
      return PrepareAllgather(set, settings, entries, batch);
    case OpKind::kBroadcast:
      return PrepareBroadcast(set, settings, entries, batch);
    case OpKind::kReducescatter:
      return PrepareReducescatter(set, entries, batch);
    case OpKind::kAlltoall:
      return PrepareAlltoall(set, entries, batch);
    default:
      return Status::Failed("not a collective that moves data");
  }
}

}  // namespace hvd
