// SPDX-License-Identifier: Apache-2.0
#include "core/applier.h"

#include <string>
#include <string_view>
#include <utility>

#include "core/execution.h"
#include "core/nccl_execution.h"
#include "core/shown.h"

namespace hvd {
namespace {

constexpr size_t kCacheWorthTelling = 256;         // number of entries from which each doubling is logged
constexpr size_t kLargeBatch = size_t{256} << 20;  // bytes in the tensors of all members; more than CPU caches hold

// Return true if the batch is large. The answer depends on the log alone, so that all members agree.
bool IsLarge(const Entries& entries, size_t members) {
  if (entries[0]->request.kind != OpKind::kAllreduce) return false;
  size_t bytes = 0;
  for (const auto& entry : entries) bytes += entry->request.Bytes() * members;
  return bytes >= kLargeBatch;
}

}  // namespace

Applier::Applier(ProcessSet* set, MemberState* state, Leader* leader, ExpressProtocol* express,
                 const Services* services)
    : set_(*set),
      state_(*state),
      leader_(leader),
      express_(*express),
      services_(*services),
      chunk_bytes_(services->settings->slot_bytes) {}

// ---- applying records

Applier::Outcome Applier::Apply(Record* record) {
  const int leader = set_.ranks()[0];
  if (!state_.Advance(record->sequence)) {
    return {Status::Failed("records of process set " + std::to_string(set_.id()) + " came out of order", leader), {}};
  }
  switch (record->kind) {
    case RecordKind::kBatch:
      return ApplyBatch(record->sequence, std::move(record->entries));
    case RecordKind::kTune:
      UseChunks(static_cast<size_t>(record->tuning.chunk_bytes));
      return {};
    case RecordKind::kError:
      if (record->names.empty()) return {Status::Failed(record->error.text, leader), {}};
      ApplyError(*record);
      return {};
    default:
      for (size_t i = 0; i < record->evicted.size(); ++i) {
        express_.Evict(record->evicted[i], i < record->rounds.size() ? record->rounds[i] : 0);
      }
      return {};
  }
}

Applier::Outcome Applier::ApplyBatch(uint64_t sequence, std::vector<Entry> entries) {
  if (entries.empty()) return {};
  const bool placed = entries[0].direct;  // tensors that differ in this are never fused
  Entries agreed;
  Status status = Agree(std::move(entries), &agreed);
  if (!status.ok()) return {std::move(status), {}};
  if (tuning_) Tune(agreed);
  const Entry& first = *agreed[0];
  switch (first.request.kind) {
    case OpKind::kBarrier:
      Finish(first.request.name, 0);
      return {};
    case OpKind::kJoin:
      state_.EndJoin();
      Finish(first.request.name, first.sizes.at(0));
      return {};
    case OpKind::kAddProcessSet:
    case OpKind::kRemoveProcessSet:
      return {Status::Ok(), std::move(agreed[0])};
    default:
      return {Start(sequence, std::move(agreed), placed), {}};
  }
}

// Return the tensors of a batch as all members know them. A tensor that is named by its cache slot also ends a round of
// the fast path for that slot (see express.h).
Status Applier::Agree(std::vector<Entry> entries, Entries* agreed) {
  agreed->reserve(entries.size());
  for (Entry& entry : entries) {
    if (!entry.cached) {
      agreed->push_back(Learn(std::move(entry)));
      continue;
    }
    std::shared_ptr<const Entry> known = state_.cache().Share(entry.slot);
    if (!known) {
      return Status::Failed("a batch names a cache slot that nobody assigned", set_.ranks()[0]);
    }
    express_.EndRound(*known);
    agreed->push_back(std::move(known));
  }
  return Status::Ok();
}

void Applier::Tune(const Entries& agreed) {
  const std::optional<Tuning> next = tuning_->OnBatch(agreed, TuningSession::Clock::now());
  if (!next) return;
  leader_->coordinator().Tune(*next);
  if (next->final) tuning_.reset();
}

// Finish an operation that moves no data, such as a barrier: it is done as soon as all members have asked for it.
void Applier::Finish(const std::string& name, int64_t value) {
  std::unique_ptr<Operation> operation = state_.pending().Take(name);
  if (!operation) return;
  operation->handle->value = value;
  services_.completions->Finish(std::move(operation), Status::Ok());
}

void Applier::ApplyError(const Record& record) {
  for (size_t i = 0; i < record.names.size(); ++i) {
    const uint32_t round = i < record.rounds.size() ? record.rounds[i] : kNoRound;
    const Operation* waiting = state_.pending().Find(record.names[i]);
    // The previous run of this tensor may still wait for a part that the other ranks have received; that run did not
    // fail.
    const bool settled = waiting && express_.Settled(*waiting);
    const bool earlier = settled || (waiting && round != kNoRound && waiting->round < round);
    const Entry* known = state_.cache().Find(record.names[i]);
    if (waiting && !earlier) {
      if (waiting->request.kind == OpKind::kJoin) state_.EndJoin();
      services_.completions->Finish(state_.pending().Take(record.names[i]), record.error);
    }
    if (round != kNoRound && known) express_.EndRound(known->slot, round, record.error);
  }
}

// Return a fully described tensor as a shared entry; put it into the response cache if the leader assigned a slot.
std::shared_ptr<const Entry> Applier::Learn(Entry entry) {
  entry.device = entry.request.device;
  if (entry.slot != kNoSlot) {
    Entry known = entry;
    // Cache this member's own request, because its next request is compared with the cached one.
    if (const Operation* mine = state_.pending().Find(entry.request.name)) known.request = mine->request;
    state_.cache().Put(std::move(known));
    TellOfCache(state_.cache().size());
  }
  return std::make_shared<const Entry>(std::move(entry));
}

void Applier::TellOfCache(size_t entries) const {
  if (entries < kCacheWorthTelling || (entries & (entries - 1)) != 0) return;
  services_.log.Debug([&] {
    return "the response cache of process set " + std::to_string(set_.id()) + " has grown to " +
           std::to_string(entries) + " tensors";
  });
}

// ---- running batches

Status Applier::Start(uint64_t sequence, Entries entries, bool placed) {
  RunningBatch batch;
  batch.sequence = sequence;
  batch.placed = placed;
  batch.operations.reserve(entries.size());
  for (const auto& entry : entries) {
    batch.operations.push_back(state_.pending().Take(entry->request.name));
    if (!batch.operations.back() && !state_.joined()) {
      // Put the batch into the queue, so that the operations already taken from `pending` fail with the others.
      running_.push_back(std::move(batch));
      return Status::Failed("a batch names '" + entry->request.name + "', which this rank never submitted",
                            set_.ranks()[0]);
    }
  }
  batch.entries = std::move(entries);
  batch.chunk_bytes = chunk_bytes_;
  if (Timeline* shown = services_.timeline->if_on()) ShowAgreed(shown, set_, batch);
  services_.log.Trace([&] {
    return "process set " + std::to_string(set_.id()) + " runs " + std::to_string(batch.entries.size()) +
           " tensors together, the first '" + batch.entries[0]->request.name.substr(0, 200) + "'" +
           (set_.host_layout().hosts > 1 ? std::string(", between hosts ") + NameOf(batch.entries[0]->algorithm) : "");
  });
  if (set_.id() == kGlobalSet && set_.ranks().size() > 1 && batch.entries[0]->request.device >= 0) {
    set_.launches()->Add({set_.id(), set_.epoch(), sequence});
  }
  running_.push_back(std::move(batch));
  return Status::Ok();
}

bool Applier::Step(Status* status) {
  bool moved = set_.Pump();
  while (!running_.empty()) {
    RunningBatch& batch = running_.front();
    if (!batch.machine) *status = Prepare(&batch);
    if (!status->ok()) return true;
    if (Timeline* shown = services_.timeline->if_on()) ShowTransfers(shown, set_, &batch);
    const Machine::Step step = batch.over ? Machine::Step::kDone : batch.machine->Advance();
    moved |= step != Machine::Step::kStuck && !batch.over;
    if (step != Machine::Step::kDone) break;
    services_.counters->direct_batches += !batch.over && batch.direct;
    services_.counters->single_copy_batches += !batch.over && batch.machine->single_copy();
    batch.over = true;
    if (batch.on_device) TellOfDevice(batch);
    if (batch.on_device && WentByNccl(batch)) services_.traffic->data_is_known = false;
    if (Timeline* shown = services_.timeline->if_on(); shown && batch.on_device) {
      ShowTransfers(shown, set_, &batch);
      ShowDeviceTimes(shown, set_.devices());
    }
    if (!set_.AllSent()) break;  // unsent data may still be in the callers' tensors
    for (auto& operation : batch.operations) {
      if (operation) services_.completions->Finish(std::move(operation), Status::Ok());
    }
    running_.pop_front();
  }
  return moved;
}

// Make the batch's machine. Only now are the lanes free for the batch, so only now can their chunk size change.
Status Applier::Prepare(RunningBatch* batch) {
  set_.UseChunks(batch->chunk_bytes, IsLarge(batch->entries, set_.ranks().size()));
  Status status = hvd::Prepare(set_, *services_.settings, batch->entries, batch);
  services_.counters->foreign_batches += batch->foreign;
  services_.counters->device_batches += batch->on_device;
  if (status.ok()) TellOfTransport(*batch);
  if (!status.ok()) status.lost_rank = set_.ranks()[static_cast<size_t>(set_.me())];
  return status;
}

// Log which transport each kind of operation uses, once per kind.
void Applier::TellOfTransport(const RunningBatch& batch) {
  const OpKind kind = batch.entries[0]->request.kind;
  const uint32_t bit = uint32_t{1} << (2 * static_cast<uint32_t>(kind) + batch.foreign);
  if (told_transports_ & bit) return;
  told_transports_ |= bit;
  services_.log.Info([&] {
    return "process set " + std::to_string(set_.id()) + ": " + NameOf(kind) + " runs on " +
           (batch.foreign     ? "MPI"
            : batch.on_device ? "the GPU"
                              : set_.transport());
  });
}

// Log once which path tensors on GPUs take, when the members know whether they reach each other's memory.
void Applier::TellOfDevice(const RunningBatch& batch) {
  if (set_.nccl()) TellOfNccl(*set_.nccl(), batch);
  const DeviceMeeting* const meeting = set_.meeting();
  const RegionMeeting* const regions = set_.regions();
  if (regions && !regions->why_not().empty() && !std::exchange(told_regions_, true)) {
    services_.log.Info([&] {
      return "process set " + std::to_string(set_.id()) +
             ": CUDA tensors in memory that was made for them are copied like others: " + regions->why_not();
    });
  }
  if (told_device_ || !meeting || WentByNccl(batch)) return;
  told_device_ = true;
  services_.log.Info([&] {
    const std::string set = "process set " + std::to_string(set_.id()) + ": CUDA tensors go through ";
    return set + (meeting->link() ? "the GPU's own memory, and few bytes through host memory"
                                  : "host memory: " + meeting->why_not());
  });
}

void Applier::TellOfNccl(const NcclMeeting& meeting, const RunningBatch& batch) {
  const std::string set = "process set " + std::to_string(set_.id()) + ": ";
  if (!std::exchange(told_nccl_, true)) {
    services_.log.Info([&] {
      if (!meeting.serves()) return set + "CUDA tensors do not go through NCCL: " + meeting.why_not();
      const std::string through = set + "CUDA tensors go through NCCL " + NcclVersionText(meeting.version());
      return !meeting.mates() ? through
                              : through + " between " + std::to_string(meeting.layout().gpus()) +
                                    " GPUs, and through a GPU's own memory among the ranks that share it";
    });
  }
  if (!meeting.serves() || WentByNccl(batch) || std::exchange(told_other_, true)) return;
  const Request& first = batch.entries[0]->request;
  services_.log.Info([&] {
    return set + NameOf(first.kind) + " of " + NameOf(first.dtype) +
           (meeting.mates() ? " is nothing, or not enough, for NCCL between GPUs that ranks share, and goes another way"
                            : " is nothing that NCCL does, and goes another way");
  });
}

void Applier::Fail(const Status& status) {
  // Machines stop using the callers' tensors here, before any operation is reported as failed.
  for (RunningBatch& batch : running_) batch.machine.reset();
  for (RunningBatch& batch : running_) {
    for (auto& operation : batch.operations) {
      if (operation) services_.completions->Finish(std::move(operation), status);
    }
  }
  if (!running_.empty()) set_.DropUnsent();  // unsent data may be in the callers' tensors
  running_.clear();
}

}  // namespace hvd
