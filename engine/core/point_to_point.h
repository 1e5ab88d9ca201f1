// SPDX-License-Identifier: Apache-2.0
// Tagged messages between two ranks. The sender offers when its tensor is ready, the receiver accepts when it has a
// buffer for the tag that is, and says which way. The bytes follow on a lane that the pair makes at its first message,
// in the order of acceptance. Those of a tensor on a GPU lie in pinned memory before and after that; or, between GPUs
// of one host, they go through slots of a GPU's memory, and the lane only tells that a slot is full, and empty again.
// Nothing on a device ever waits for another rank. An operation is over when the device is done with its tensor, well
// or not.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "core/completions.h"
#include "core/handle.h"
#include "core/host_copy.h"
#include "core/process_set.h"
#include "devices/message_slots.h"
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
  // Throws DeviceError; no operation is lost by that.
  bool Step();
  bool AllSent() const;
  bool Busy() const;           // bytes are under way
  bool WatchesDevice() const;  // something is waited for of which only a look at a device tells
  void LookForAnswers(std::chrono::steady_clock::time_point now, std::chrono::milliseconds limit);
  // {rank, why} of a broken lane or {-1, ""}.
  std::pair<int, std::string> Broken() const;
  void Fail(int rank, const Status& status);  // rank -1: all
  void CloseDescriptors();
  // After the last step, once devices are done or have been given up.
  void LeaveDevices();

 private:
  using Queue = std::deque<std::unique_ptr<Operation>>;
  using Pieces = std::deque<MessageSlots::Piece>;
  struct Offer {
    uint64_t id;
    uint64_t bytes;
    std::string card;  // of the sender's slots; empty: not through those
  };
  enum class Way { kHost, kPinned, kSlots };
  // One that was accepted.
  struct Transfer {
    std::unique_ptr<Operation> operation;
    Way way = Way::kHost;
    std::unique_ptr<HostCopy> copy{};    // kPinned, from its turn on
    std::shared_ptr<DeviceMark> mark{};  // kPinned: what a device still has to do for it
    bool copied = false;                 // kPinned: between the tensor and pinned memory
    Pieces begun{};                      // kSlots: what a device copies, one after the other
    uint64_t last = 0;                   // kSlots: the lane's index behind the last piece that was sent
    Status failed{};                     // meanwhile, while the device was at it

    bool OccupiesDevice() const { return mark || !begun.empty(); }
  };
  struct Pair {
    int64_t my_region = -1, their_region = -1;
    bool reserved = false, in_memory = false, told_way = false;
    std::unique_ptr<Lane> lane;
    std::map<int64_t, Queue> unready;                        // sends by tag, in order: not offered yet
    std::map<uint64_t, std::unique_ptr<Operation>> offered;  // sends that wait for an answer
    std::map<int64_t, std::deque<Offer>> offers;             // by tag, without a buffer yet
    std::map<int64_t, Queue> receives;                       // by tag, without an offer yet
    std::set<int64_t> unmatched;                             // tags that want a look at both
    std::deque<Transfer> outgoing, incoming;                 // accepted, in order
    uint64_t sent = 0, received = 0;                         // bytes of the front ones
    std::deque<Transfer> unread;                             // sends whose last pieces are still in slots
    std::shared_ptr<MessageSlots> slots_out, slots_in;       // null: not yet
    Status left;                                             // the other rank has; ok: not
  };

  Pair& PairWith(int rank);
  void OfferReady(int rank, Pair& pair, int64_t tag);
  bool WantsSlots(int rank, const Operation& send) const;
  bool HasSlotsOut(int rank, Pair& pair, const Operation& send, std::string* card);
  void Match(int rank, Pair& pair, int64_t tag);
  bool HasSlotsIn(int rank, Pair& pair, const Offer& offer, const Operation& receive, Way* way);
  void Accept(int rank, Pair& pair, const Offer& offer, std::unique_ptr<Operation> receive, Way way);
  void TellWay(int rank, Pair& pair, const std::string& why_not);
  void BuildLane(int rank, Pair& pair);

  bool StepToItself(Pair& pair);
  bool StepOut(Pair& pair);
  bool StepIn(Pair& pair);
  bool StepUnread(Pair& pair);
  bool HasPinned(Transfer& transfer);
  bool PutPiece(Pair& pair, Transfer& send, size_t left, size_t* length);
  bool TakePiece(Pair& pair, Transfer& receive, size_t left, size_t* length);
  bool PutToSlots(Pair& pair, Transfer& send, size_t left, size_t* length);
  bool TakeFromSlots(Pair& pair, Transfer& receive, size_t left, size_t* length);
  void EndSend(Pair& pair);
  bool EndReceive(Pair& pair);

  void Finish(std::unique_ptr<Operation> operation, const Status& status);
  void FailUnanswered(Pair& pair, const Status& status);
  void FailTransfers(std::deque<Transfer>* queue, const Status& status, bool from_slots_on);
  bool FinishFailed(std::deque<Transfer>* queue);
  void FinishAfterFarewell(Pair& pair);

  Surroundings around_;
  Mailbox* mailbox_;
  Completions* completions_;
  Log log_;
  uint64_t last_id_ = 0;
  std::map<int, Pair> pairs_;
};

}  // namespace hvd
