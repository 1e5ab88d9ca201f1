// SPDX-License-Identifier: Apache-2.0
// Tagged messages between two ranks. The sender offers when its tensor is ready, the receiver accepts when it has a
// buffer for the tag and says which way: the bytes follow on a lane that the pair makes at its first message, or from
// GPU to GPU (nccl_path.h). Transfers of a pair go each way in the order of acceptance.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "core/completions.h"
#include "core/gpu_ends.h"
#include "core/handle.h"
#include "core/host_copy.h"
#include "core/nccl_path.h"
#include "core/process_set.h"
#include "transport/mailbox.h"

namespace hvd {

class PointToPoint {
 public:
  PointToPoint(const Surroundings& around, Mailbox* mailbox, Completions* completions, const Log& log);
  ~PointToPoint();

  // kind kSend or kReceive; root: the other rank; splits: {tag}; shape: {bytes}.
  void Start(std::unique_ptr<Operation> operation);
  // `body`: what follows the header of a kOffer or kAccept message. False if it is malformed.
  bool OnOffer(int from, std::string_view body);
  bool OnAccept(int from, std::string_view body);
  void OnCommit(int from);
  bool Step();
  bool AllSent() const;
  bool Busy() const;  // bytes are under way
  // Something is waited for of which only a look at a device tells.
  bool WatchesDevice() const;
  void LookForAnswers(std::chrono::steady_clock::time_point now, std::chrono::milliseconds limit);
  // {rank, why} of a broken lane or {-1, ""}.
  std::pair<int, std::string> Broken() const;
  void Fail(int rank, const Status& status);  // rank -1: all
  void CloseDescriptors();

  // NCCL does not serve collectives of all ranks: nor messages.
  void GiveUpNccl(const std::string& why_not) { ends_.GiveUpNccl(why_not); }
  std::string Trouble();
  // A rank that has left although something here waits for it on a GPU; -1: none.
  int StuckOn(std::chrono::steady_clock::time_point now) const;
  // Nothing on a GPU waits for a message any longer.
  void AbortPaths();
  void LeaveDevices(bool whole, std::chrono::steady_clock::time_point until);

 private:
  using Queue = std::deque<std::unique_ptr<Operation>>;
  struct Offer {
    uint64_t id;
    uint64_t bytes;
    std::string gpu;
  };
  // On its way over the lane.
  struct Transfer {
    std::unique_ptr<Operation> operation;
    std::unique_ptr<HostCopy> copy;  // of a tensor on a GPU; null: it lies here
    bool IsThere() const { return !copy || copy->IsThere(); }
    const std::byte* from() const { return copy ? copy->data() : operation->input; }
    std::byte* to() const { return copy ? copy->data() : operation->output; }
  };
  struct Accepted {
    uint64_t id;
    std::unique_ptr<Operation> receive;
  };
  struct Pair {
    int64_t my_region = -1, their_region = -1;
    bool reserved = false, in_memory = false, told_way = false, told_name = false;
    std::unique_ptr<Lane> lane;
    std::map<int64_t, Queue> unready;                        // sends by tag, the first of which is not ready yet
    std::map<uint64_t, std::unique_ptr<Operation>> offered;  // sends that wait to be accepted
    std::map<int64_t, std::deque<Offer>> offers;             // by tag, without a buffer yet
    std::map<int64_t, Queue> receives;                       // by tag, without an offer yet
    std::set<int64_t> unmatched;                             // tags with both, the first receive of which is not ready
    std::deque<Transfer> outgoing, incoming;                 // accepted, in order
    uint64_t sent = 0, received = 0;                         // bytes of the front ones
    Status left;                                             // the other rank has; ok: not
    std::unique_ptr<NcclPath> path_out, path_in;             // null: not yet

    std::vector<NcclPath*> Paths() const;
    std::string gpu_of_path_in;    // the sender's
    std::deque<Accepted> unnamed;  // to be accepted when the path has a name
  };

  Pair& PairWith(int rank);
  bool IsReady(const Operation& operation);
  void OfferReady(int rank, Pair& pair, int64_t tag);
  void Match(int rank, Pair& pair, int64_t tag);
  void Accept(int rank, Pair& pair, const Offer& offer, std::unique_ptr<Operation> receive);
  bool GoesOverNccl(int rank, Pair& pair, const Offer& offer, const Operation& receive, std::string* why_not);
  void AcceptNamed(int rank, Pair& pair);
  bool MeetOnPath(int rank, Pair& pair, const std::string& word, const Operation& send);
  Transfer TransferOf(std::unique_ptr<Operation> operation);
  void BuildLane(int rank, Pair& pair);
  bool StepToItself(Pair& pair);
  bool StepOut(Pair& pair);
  bool StepIn(Pair& pair);
  bool StepPaths(int rank, Pair& pair);
  void FinishFirst(std::deque<Transfer>* queue);
  void FailUnaccepted(Pair& pair, const Status& status);
  void FailAccepted(Pair& pair, const Status& status);
  void FinishAfterFarewell(Pair& pair);

  Surroundings around_;
  Mailbox* mailbox_;
  Completions* completions_;
  Log log_;
  GpuEnds ends_;
  uint64_t last_id_ = 0;
  std::map<int, Pair> pairs_;
};

}  // namespace hvd
