// SPDX-License-Identifier: Apache-2.0
#include "core/foreign_execution.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/row_share.h"
#include "collectives/foreign.h"
#include "core/execution.h"

namespace hvd {
namespace {

constexpr size_t kMostForeignBytes = size_t{1} << 30;  // counts and displacements of most MPIs have 32 bits

using Job = std::shared_ptr<ForeignJob>;
using Stages = std::vector<ForeignMachine::Make>;

bool IsFloat8(DType dtype) { return dtype == DType::kFloat8E4M3 || dtype == DType::kFloat8E5M2; }

bool MayReduceForeign(const Request& request, const Settings& settings) {
  const bool extreme = request.op == ReduceOp::kMin || request.op == ReduceOp::kMax;
  const bool floating = hvd_is_floating(static_cast<int32_t>(request.dtype));
  return !settings.deterministic && request.op != ReduceOp::kAdasum && !IsFloat8(request.dtype) &&
         !(extreme && floating);
}

Job NewJob(const ProcessSet& set, OpKind kind) {
  auto job = std::make_shared<ForeignJob>();
  job->kind = kind;
  job->group = set.epoch();
  job->members.assign(set.ranks().begin(), set.ranks().end());
  return job;
}

Job NewReduction(const ProcessSet& set, OpKind kind, const Reduction& reduction) {
  Job job = NewJob(set, kind);
  job->dtype = ForeignDType(reduction);
  job->op = reduction.op;
  if (reduction.dtype == DType::kBool) {  // any nonzero byte is true
    const bool all = reduction.op == ReduceOp::kMin || reduction.op == ReduceOp::kProduct;
    job->op = all ? ReduceOp::kMin : ReduceOp::kMax;
  }
  return job;
}

size_t ForeignBytes(size_t bytes, const Reduction& reduction) {
  return bytes / SizeOf(reduction.dtype) * SizeOf(ForeignDType(reduction));
}

void CopyOut(const std::byte* from, const Flat& to) { Scatter(from, to, 0, to.size()); }
void CopyIn(const Flat& from, std::byte* to) { Gather(from, 0, from.size(), DType::kUInt8, 1.0, to); }

bool ForeignAllreduce(ProcessSet& set, const Entries& entries, RunningBatch* batch, Stages* stages) {
  size_t missing = 0, total = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    total += entries[i]->request.Bytes();
    if (!batch->operations[i]) missing += entries[i]->request.Bytes();
  }
  const Reduction reduction = ReductionOf(entries[0]->request, set.ranks().size());
  if (ForeignBytes(total, reduction) > kMostForeignBytes) return false;
  batch->zeros.resize(missing);
  std::byte* zeros = batch->zeros.data();
  Flat in, out;
  for (size_t i = 0; i < entries.size(); ++i) {
    const size_t bytes = entries[i]->request.Bytes();
    const Operation* operation = batch->operations[i].get();
    in.Add(operation ? const_cast<std::byte*>(operation->input) : zeros, bytes, operation && operation->wide);
    out.Add(operation ? operation->output : zeros, bytes, operation && operation->wide);
    if (!operation) zeros += bytes;
  }
  stages->push_back([&set, reduction, in = std::move(in), out = std::move(out)] {
    Job job = NewReduction(set, OpKind::kAllreduce, reduction);
    job->out_bytes = ForeignBytes(in.size(), reduction);
    job->load = [in, reduction](ForeignJob& it) { LoadForReduction(in, reduction, it.begin()); };
    job->unload = [out, reduction](ForeignJob& it) { UnloadReduced(it.out.data.get(), out, reduction); };
    return job;
  });
  return true;
}

bool ForeignReducescatter(ProcessSet& set, const Entries& entries, RunningBatch* batch, Stages* stages) {
  const auto members = static_cast<int64_t>(set.ranks().size());
  const Reduction reduction = ReductionOf(entries[0]->request, set.ranks().size());
  std::vector<Flat> ins(set.ranks().size());
  Flat out;
  size_t total = 0;
  for (const auto& operation : batch->operations) {
    const int64_t rows = operation->request.shape[0];
    std::byte* from = const_cast<std::byte*>(operation->input);
    for (int64_t j = 0; j < members; ++j) {
      const size_t bytes = static_cast<size_t>(ShareOfRows(rows, members, j).rows) * operation->request.RowBytes();
      ins[static_cast<size_t>(j)].Add(from, bytes);
      from += bytes;
      total += bytes;
      if (j == set.me()) out.Add(operation->output, bytes);
    }
  }
  if (ForeignBytes(total, reduction) > kMostForeignBytes) return false;
  stages->push_back([&set, reduction, total, ins = std::move(ins), out = std::move(out)] {
    Job job = NewReduction(set, OpKind::kReducescatter, reduction);
    job->in_bytes = std::max<size_t>(ForeignBytes(total, reduction), 1);
    job->out_bytes = ForeignBytes(out.size(), reduction);
    for (const Flat& in : ins) job->received.push_back(static_cast<int64_t>(in.size() / SizeOf(reduction.dtype)));
    job->load = [ins, reduction](ForeignJob& it) {
      std::byte* to = it.in.data.get();
      for (const Flat& in : ins) {
        LoadForReduction(in, reduction, to);
        to += ForeignBytes(in.size(), reduction);
      }
    };
    job->unload = [out, reduction](ForeignJob& it) { UnloadReduced(it.out.data.get(), out, reduction); };
    return job;
  });
  return true;
}

bool ForeignAllgather(ProcessSet& set, const Entries& entries, RunningBatch* batch, Stages* stages) {
  size_t total = 0;
  for (const auto& entry : entries) {
    total += static_cast<size_t>(std::accumulate(entry->sizes.begin(), entry->sizes.end(), int64_t{0})) *
             entry->request.RowBytes();
  }
  if (total > kMostForeignBytes) return false;
  Flat in;
  std::vector<Flat> outs(set.ranks().size());
  for (size_t i = 0; i < entries.size(); ++i) {
    Operation& operation = *batch->operations[i];
    const std::vector<int64_t>& sizes = entries[i]->sizes;
    std::byte* to = OutputOf(operation, std::accumulate(sizes.begin(), sizes.end(), int64_t{0}), nullptr);
    in.Add(const_cast<std::byte*>(operation.input), operation.request.Bytes());
    for (size_t j = 0; j < outs.size(); ++j) {
      const size_t bytes = static_cast<size_t>(sizes[j]) * operation.request.RowBytes();
      outs[j].Add(to, bytes);
      to += bytes;
    }
  }
  stages->push_back([&set, total, in = std::move(in), outs = std::move(outs)] {
    Job job = NewJob(set, OpKind::kAllgather);
    job->in_bytes = std::max<size_t>(in.size(), 1);
    job->out_bytes = total;
    job->sent = {static_cast<int64_t>(in.size())};
    for (const Flat& out : outs) job->received.push_back(static_cast<int64_t>(out.size()));
    job->load = [in](ForeignJob& it) { CopyIn(in, it.in.data.get()); };
    job->unload = [outs](ForeignJob& it) {
      const std::byte* from = it.out.data.get();
      for (const Flat& out : outs) {
        CopyOut(from, out);
        from += out.size();
      }
    };
    return job;
  });
  return true;
}

bool ForeignBroadcast(ProcessSet& set, const Entries& entries, RunningBatch* batch, Stages* stages) {
  Flat in, out;
  for (const auto& operation : batch->operations) {
    in.Add(const_cast<std::byte*>(operation->input), operation->request.Bytes());
    out.Add(operation->output, operation->request.Bytes());
  }
  if (in.size() > kMostForeignBytes) return false;
  const int root = set.IndexOf(entries[0]->request.root);
  stages->push_back([&set, root, in = std::move(in), out = std::move(out)] {
    Job job = NewJob(set, OpKind::kBroadcast);
    job->root = root;
    job->out_bytes = in.size();
    if (root == set.me()) job->load = [in](ForeignJob& it) { CopyIn(in, it.begin()); };
    job->unload = [out](ForeignJob& it) { CopyOut(it.out.data.get(), out); };
    return job;
  });
  return true;
}

// First exchange the numbers of rows, because the size of the output follows from them.
bool ForeignAlltoall(ProcessSet& set, const Entries& entries, RunningBatch* batch, Stages* stages) {
  Operation* operation = batch->operations[0].get();
  const size_t row = operation->request.RowBytes(), members = set.ranks().size();
  if (static_cast<size_t>(entries[0]->sizes.at(0)) * row * members > kMostForeignBytes) return false;
  auto received = std::make_shared<std::vector<int64_t>>(members);
  stages->push_back([&set, operation, received, members] {
    Job job = NewJob(set, OpKind::kAlltoall);
    job->in_bytes = job->out_bytes = members * sizeof(int64_t);
    job->sent = job->received = std::vector<int64_t>(members, sizeof(int64_t));
    job->load = [operation](ForeignJob& it) {
      std::memcpy(it.in.data.get(), operation->request.splits.data(), it.in_bytes);
    };
    job->unload = [received](ForeignJob& it) { std::memcpy(received->data(), it.out.data.get(), it.out_bytes); };
    return job;
  });
  stages->push_back([&set, operation, received, row] {
    Job job = NewJob(set, OpKind::kAlltoall);
    const int64_t rows = std::accumulate(received->begin(), received->end(), int64_t{0});
    operation->handle->received_splits = *received;
    std::byte* const to = OutputOf(*operation, rows, nullptr);
    job->out_bytes = static_cast<size_t>(rows) * row;
    const size_t in_bytes = operation->request.Bytes();
    job->in_bytes = std::max<size_t>(in_bytes, 1);
    for (int64_t from : *received) job->received.push_back(from * static_cast<int64_t>(row));
    for (int64_t split : operation->request.splits) job->sent.push_back(split * static_cast<int64_t>(row));
    job->load = [operation, in_bytes](ForeignJob& it) {
      if (in_bytes) std::memcpy(it.in.data.get(), operation->input, in_bytes);
    };
    job->unload = [to](ForeignJob& it) {
      if (it.out_bytes) std::memcpy(to, it.out.data.get(), it.out_bytes);
    };
    return job;
  });
  return true;
}

bool MakeStages(ProcessSet& set, const Settings& settings, const Entries& entries, RunningBatch* batch,
                Stages* stages) {
  const Request& first = entries[0]->request;
  switch (first.kind) {
    case OpKind::kAllreduce:
      return MayReduceForeign(first, settings) && ForeignAllreduce(set, entries, batch, stages);
    case OpKind::kReducescatter:
      return MayReduceForeign(first, settings) && ForeignReducescatter(set, entries, batch, stages);
    case OpKind::kAllgather:
      return ForeignAllgather(set, entries, batch, stages);
    case OpKind::kBroadcast:
      return ForeignBroadcast(set, entries, batch, stages);
    case OpKind::kAlltoall:
      return ForeignAlltoall(set, entries, batch, stages);
    default:
      return false;
  }
}

}  // namespace

bool PrepareForeign(ProcessSet& set, const Settings& settings, const Entries& entries, RunningBatch* batch) {
  Stages stages;
  if (!set.foreign() || set.ranks().size() < 2 || !MakeStages(set, settings, entries, batch, &stages)) return false;
  batch->machine = std::make_unique<ForeignMachine>(set.foreign(), std::move(stages));
  batch->foreign = true;
  return true;
}

void PutGroupJob(ForeignJobs* jobs, OpKind kind, uint32_t epoch, const std::vector<int>& ranks) {
  auto job = std::make_shared<ForeignJob>();
  job->kind = kind;
  job->group = epoch;
  job->members.assign(ranks.begin(), ranks.end());
  jobs->Put(std::move(job));
}

}  // namespace hvd
