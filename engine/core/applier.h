// SPDX-License-Identifier: Apache-2.0
// The log of one process set as a member applies it: takes the leader's records in their order, starts the batches that
// follow from them, moves these on one after the other, and finishes their operations. Which machine runs a batch is
// chosen when its turn comes (see execution.h).
//
// A status that is not ok tells that the world cannot go on: because of `lost_rank`, or, without one, of what `text`
// says.
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
  // All of them outlive it. `leader`: null unless this rank leads the set.
  Applier(ProcessSet* set, MemberState* state, Leader* leader, ExpressProtocol* express, const Services* services);
  Applier(const Applier&) = delete;
  Applier& operator=(const Applier&) = delete;

  struct Outcome {
    Status status;
    std::shared_ptr<const Entry> change;  // a set is to be added or removed, which is not for this one to do
  };
  // `record` is used up, but for its kind and its tuning.
  Outcome Apply(Record* record);

  // Moves the first batch on, and those behind it as their turn comes; true if anything moved.
  bool Step(Status* status);
  bool busy() const { return !running_.empty(); }
  bool watches_device() const {
    return busy() && running_.front().machine && running_.front().machine->watches_device();
  }
  // Everything that runs fails.
  void Fail(const Status& status);

  // Of the batches that follow in the log.
  void UseChunks(size_t bytes) { chunk_bytes_ = bytes; }
  // The leader's: the session hears of every batch, and the coordinator what the session wants tried.
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
  std::unique_ptr<TuningSession> tuning_;  // until the tuning is over
};

}  // namespace hvd
