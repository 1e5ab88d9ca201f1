// SPDX-License-Identifier: Apache-2.0
// Sends the control messages of one process set along its tree: up to the leader, down to all members. A message for
// this rank itself is handled without encoding it. No clock and no socket: `Transport` is anything with
// Send(rank, message), so that a simulation can run this class.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agreement/control.h"
#include "agreement/departures.h"
#include "agreement/tree.h"
#include "core/member_state.h"
#include "transport/mailbox.h"

namespace hvd {

// Owns the cache slots that this rank is ready for and has not reported yet.
template <typename Transport>
class BasicSetMail {
 public:
  // Position of this rank in the process set.
  struct Position {
    control::SetTag tag;
    int me;  // member index
    const std::vector<int>* ranks;
    const Tree* tree;
  };
  // All arguments must outlive this object. Ranks in `departures` that have departed receive nothing from above.
  BasicSetMail(const Position& position, const MemberState* state, const Departures* departures, Transport* transport)
      : position_(position), state_(*state), departures_(*departures), transport_(transport) {}
  BasicSetMail(const BasicSetMail&) = delete;
  BasicSetMail& operator=(const BasicSetMail&) = delete;

  bool leads() const { return position_.tree->parent < 0; }

  // ---- reports. Not for the leader.

  // Report with the next Flush that this rank is ready for the tensor cached under `slot`.
  void AddReady(uint32_t slot) { control::AddSlot(&ready_, slot); }
  void Flush() {
    if (ready_.empty()) return;
    SendUp(control::EncodeReady(position_.tag, position_.me, state_.applied(), ready_));
    ready_.clear();
  }
  // Report that this rank is ready for a tensor, described in full. Slots added before are reported first, because the
  // leader needs the reports in submission order, above all before a join.
  void SendRequest(const Request& request) {
    Flush();
    SendUp(control::EncodeRequest(position_.tag, position_.me, request));
  }

  // ---- up to the leader

  void SendUp(std::string_view message) { transport_->Send(RankOf(position_.tree->parent), message); }
  // Send a message up unless the connection to the leader is gone.
  void SendUpIfOpen(std::string_view message) {
    if (state_.closed().ok()) SendUp(message);
  }
  // Send a message of this rank to the leader. If this rank leads the set, call `handle` with it instead.
  template <typename Message, typename Handle>
  void ToLeader(control::Type type, Message message, const Handle& handle) {
    if (leads()) return handle(std::move(message));
    if (state_.closed().ok()) SendUp(control::EncodeMessage(position_.tag, type, message));
  }
  // Process a message that is on its way to the leader: send it on, or call `handle` if this rank leads the set.
  // `body` is the message without its header. Return false if this rank leads and the message is malformed.
  template <typename Message, typename Handle>
  bool OnWayUp(std::string_view whole, std::string_view body, const Handle& handle) {
    if (!leads()) {
      SendUpIfOpen(whole);
      return true;
    }
    Message message;
    if (!Decode(&body, &message)) return false;
    handle(std::move(message));
    return true;
  }

  // ---- down to all members

  void SendDown(std::string_view message) {
    for (int child : position_.tree->children) {
      if (!departures_.departed(RankOf(child))) transport_->Send(RankOf(child), message);
    }
  }
  // Send a message of the leader to all other members.
  template <typename Message>
  void Publish(control::Type type, const Message& message) {
    if (!position_.tree->children.empty()) SendDown(control::EncodeMessage(position_.tag, type, message));
  }
  // Process a message that is on its way down from the leader: send it on, then call `handle` with it. Return false if
  // it is malformed.
  template <typename Message, typename Handle>
  bool OnWayDown(std::string_view whole, std::string_view body, const Handle& handle) {
    SendDown(whole);
    Message message;
    if (!Decode(&body, &message)) return false;
    handle(std::move(message));
    return true;
  }

 private:
  int RankOf(int member) const { return (*position_.ranks)[static_cast<size_t>(member)]; }

  const Position position_;
  const MemberState& state_;
  const Departures& departures_;
  Transport* transport_;
  std::string ready_;
};

using SetMail = BasicSetMail<Mailbox>;

}  // namespace hvd
