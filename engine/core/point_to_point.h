// SPDX-License-Identifier: Apache-2.0
// Tagged messages between two ranks. The sender offers, the receiver accepts when it has a buffer for the tag, and the
// bytes follow on a lane that the pair makes at its first message. Transfers of a pair go in the order of acceptance.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string_view>

#include "core/completions.h"
#include "core/handle.h"
#include "core/process_set.h"
#include "transport/mailbox.h"

namespace hvd {

class PointToPoint {
 public:
  PointToPoint(const Surroundings& around, Mailbox* mailbox, Completions* completions);
  ~PointToPoint();

  // kind kSend or kReceive; root: the other rank; splits: {tag}; shape: {bytes}.
  void Start(std::unique_ptr<Operation> operation);
  // `body`: what follows the header of a kOffer or kAccept message. False if it is malformed.
  bool OnOffer(int from, std::string_view body);
  bool OnAccept(int from, std::string_view body);
  bool Step();
  bool AllSent() const;
  bool Busy() const;  // bytes are under way
  void LookForAnswers(std::chrono::steady_clock::time_point now, std::chrono::milliseconds limit);
  // {rank, why} of a broken lane or {-1, ""}.
  std::pair<int, std::string> Broken() const;
  void Fail(int rank, const Status& status);  // rank -1: all
  void CloseDescriptors();

 private:
  struct Offer {
    uint64_t id;
    uint64_t bytes;
  };
  struct Pair {
    int64_t my_region = -1, their_region = -1;
    bool reserved = false, in_memory = false;
    std::unique_ptr<Lane> lane;
    std::map<uint64_t, std::unique_ptr<Operation>> offered;              // sends that wait to be accepted
    std::map<int64_t, std::deque<Offer>> offers;                         // by tag, without a buffer yet
    std::map<int64_t, std::deque<std::unique_ptr<Operation>>> receives;  // by tag, without an offer yet
    std::deque<std::unique_ptr<Operation>> outgoing, incoming;           // accepted, in order
    uint64_t sent = 0, received = 0;                                     // bytes of the front ones
  };

  Pair& PairWith(int rank);
  void Match(int rank, Pair& pair, int64_t tag);
  void BuildLane(int rank, Pair& pair);
  void Deliver(std::unique_ptr<Operation> send, std::unique_ptr<Operation> receive);
  bool StepOut(Pair& pair);
  bool StepIn(Pair& pair);

  Surroundings around_;
  Mailbox* mailbox_;
  Completions* completions_;
  uint64_t last_id_ = 0;
  std::map<int, Pair> pairs_;
};

}  // namespace hvd
