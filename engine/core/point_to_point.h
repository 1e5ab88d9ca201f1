// SPDX-License-Identifier: Apache-2.0
// Tagged messages between two ranks. The sender sends an offer when its tensor is ready. The receiver accepts when a
// buffer for the tag is ready, and chooses the way. The bytes follow on a lane that the pair creates at its first
// message, in the order of acceptance. Tensors on GPUs are staged in pinned memory on both sides. Between GPUs of one
// host they can instead go through slots of a GPU's memory; the lane then only signals which slots are full or empty.
// Work on a device never waits for another rank. An operation ends, successfully or not, only when the device has
// finished with its tensor.
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

  // Start an operation of kind kSend or kReceive. `root` is the other rank, `splits` is {tag}, `shape` is {bytes}.
  void Start(std::unique_ptr<Operation> operation);
  // Handle an offer or acceptance. `body` is what follows the header. Return false if it is malformed.
  bool OnOffer(int from, std::string_view body);
  bool OnAccept(int from, std::string_view body);
  // Advance all messages. Return true if anything moved. Throws DeviceError, but keeps all operations.
  bool Step();
  bool AllSent() const;
  bool Busy() const;           // true while bytes are under way
  bool WatchesDevice() const;  // true if progress can only be seen by polling a device
  void LookForAnswers(std::chrono::steady_clock::time_point now, std::chrono::milliseconds limit);
  // Return {rank, reason} of a broken lane, or {-1, ""}.
  std::pair<int, std::string> Broken() const;
  void Fail(int rank, const Status& status);  // rank -1: all ranks
  void CloseDescriptors();
  // Free memory on devices. Call after the last step, when devices have finished or their work was abandoned.
  void LeaveDevices();

 private:
  using Queue = std::deque<std::unique_ptr<Operation>>;
  using Pieces = std::deque<MessageSlots::Piece>;
  struct Offer {
    uint64_t id;
    uint64_t bytes;
    std::string card;  // handle of the sender's slots; empty: not through slots
  };
  enum class Way { kHost, kPinned, kSlots };
  // A message that was accepted.
  struct Transfer {
    std::unique_ptr<Operation> operation;
    Way way = Way::kHost;
    std::unique_ptr<HostCopy> copy{};    // kPinned: set once it is the first in the queue
    std::shared_ptr<DeviceMark> mark{};  // kPinned: copy that a device has not finished
    bool copied = false;                 // kPinned: true once the tensor is in pinned memory
    Pieces begun{};                      // kSlots: copies that a device is doing, in order
    uint64_t last = 0;                   // kSlots: index in the lane after the last piece sent
    Status failed{};                     // error that came while the device was busy with it

    bool OccupiesDevice() const { return mark || !begun.empty(); }
  };
  struct Pair {
    int64_t my_region = -1, their_region = -1;
    bool reserved = false, in_memory = false, told_way = false;
    std::unique_ptr<Lane> lane;
    std::map<int64_t, Queue> unready;                        // sends by tag, in order, that are not offered yet
    std::map<uint64_t, std::unique_ptr<Operation>> offered;  // sends that wait for an answer
    std::map<int64_t, std::deque<Offer>> offers;             // offers by tag, without a buffer yet
    std::map<int64_t, Queue> receives;                       // receives by tag, without an offer yet
    std::set<int64_t> unmatched;                             // tags whose offers and receives have to be compared
    std::deque<Transfer> outgoing, incoming;                 // accepted messages, in order
    uint64_t sent = 0, received = 0;  // bytes done of the first outgoing and the first incoming message
    std::deque<Transfer> unread;      // sends whose last pieces the receiver has not read
    std::shared_ptr<MessageSlots> slots_out, slots_in;  // null until needed
    Status left;                                        // why the other rank has left; ok while it is there
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
