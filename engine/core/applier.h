// SPDX-License-Identifier: Apache-2.0
// Applies the log of one process set on this member: takes the leader's records in order, starts the batches they
// contain, advances them one after the other, and finishes their operations. The machine (collective state machine) for
// a batch is chosen when the batch reaches the front of the queue (see execution.h).
//
// A returned status that is not ok means that the world must end: because of `lost_rank`, or, if that is -1, for the
// reason in `text`.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "agreement/leader.h"
#include "agreement/message.h"
#include "core/express_protocol.h"
#include "core/member_state.h"
#include "core/process_set.h"
#include "core/running_batch.h"
#include "core/services.h"
#include "tuning/tuning_session.h"

namespace hvd {

class Applier {
 public:
  // All arguments must outlive the Applier. `leader` is null unless this rank leads the set.
  Applier(ProcessSet* set, MemberState* state, Leader* leader, ExpressProtocol* express, const Services* services);
  Applier(const Applier&) = delete;
  Applier& operator=(const Applier&) = delete;

  struct Outcome {
    Status status;
    std::shared_ptr<const Entry> change;  // request to add or remove a process set, which the engine carries out
  };
  // Apply one record. Its entries are moved out; its other fields stay.
  Outcome Apply(Record* record);

  // Advance the running batches in order. Return true if anything moved.
  bool Step(Status* status);
  bool busy() const { return !running_.empty(); }
  bool watches_device() const {
    return busy() && running_.front().machine && running_.front().machine->watches_device();
  }
  // Fail the operations of all running batches.
  void Fail(const Status& status);

  // Set the chunk size for batches that later records start.
  void UseChunks(size_t bytes) { chunk_bytes_ = bytes; }
  // Let a tuning session observe every batch and pass the values it wants to try to the coordinator. Leader only.
  void TuneBy(std::unique_ptr<TuningSession> session) { tuning_ = std::move(session); }

 private:
  Outcome ApplyBatch(uint64_t sequence, std::vector<Entry> entries);
  Status Agree(std::vector<Entry> entries, Entries* agreed);
  void Tune(const Entries& agreed);
  void ApplyError(const Record& record);
  std::shared_ptr<const Entry> Learn(Entry entry);
  void TellOfCache(size_t entries) const;
  Status Start(uint64_t sequence, Entries entries, bool placed);
  Status Prepare(RunningBatch* batch);
  void Finish(const std::string& name, int64_t value);
  void TellOfTransport(const RunningBatch& batch);
  void TellOfDevice(const RunningBatch& batch);
  void TellOfNccl(const NcclMeeting& meeting, const RunningBatch& batch);

  ProcessSet& set_;
  MemberState& state_;
  Leader* leader_;
  ExpressProtocol& express_;
  const Services& services_;
  std::deque<RunningBatch> running_;
  size_t chunk_bytes_;
  uint32_t told_transports_ = 0;
  bool told_device_ = false, told_regions_ = false, told_nccl_ = false, told_other_ = false;
  std::unique_ptr<TuningSession> tuning_;  // null once tuning is finished
};

}  // namespace hvd
