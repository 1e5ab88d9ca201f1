// SPDX-License-Identifier: Apache-2.0
// How this rank and others leave a world normally: leave notices, and what they mean in each process set. Which rank is
// in which state is decided in agreement/departures.h.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "agreement/departures.h"
#include "core/services.h"
#include "core/set_registry.h"

namespace hvd {

// Owns this rank's leave notice, and which other rank left first.
class Leaving {
 public:
  using Clock = std::chrono::steady_clock;
  using Verdict = Departures::Verdict;
  struct First {
    int rank = -1;  // -1: all other ranks are present
    Clock::time_point when;
  };

  // All arguments must outlive this object. `departures` are those of `services`.
  Leaving(Departures* departures, SetRegistry* sets, const Services* services)
      : departures_(*departures), sets_(*sets), services_(*services) {}

  // The first other rank that left normally.
  const First& first_departure() const { return first_; }
  // True if this rank has left with nothing under way and no rank lost.
  bool left_whole() const { return left_whole_; }

  // Start to leave, and send leave notices if that can be normal. `busy`: agreed operations are not finished.
  Verdict Leave(bool busy);
  // Send the leave notice to a rank that has connected after this rank has left.
  void SendNoticeTo(int rank) const {
    if (!notice_.empty()) services_.mailbox->Send(rank, notice_);
  }

  // Carry out in all sets that a rank has departed.
  void OnDeparted(int rank);
  // Carry out in one set that a rank has departed.
  void RemoveFrom(Membership& membership, int rank);
  // Process the leave notice of a rank.
  Verdict OnNotice(int from, std::string_view body);
  // Process the message that a member of a set has left.
  Verdict OnMemberGone(Membership& membership, int from, std::string_view whole, std::string_view body);

 private:
  void SendNotices();
  void SendDeparture(const ProcessSet& set, int rank) const;
  void Close(Membership& membership, int rank);

  Departures& departures_;
  SetRegistry& sets_;
  const Services& services_;
  First first_;
  std::string notice_;
  bool left_whole_ = false;
};

}  // namespace hvd
