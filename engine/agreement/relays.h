// SPDX-License-Identifier: Apache-2.0
// Forwarding of small parts (see express.h) in a set that has hosts with several members, so that a part is sent to
// another host once instead of once per member. The first member of each host receives parts for its host (inbound
// relay) and sends its host's parts to other hosts (outbound relay). On the leader's host the second member is the
// outbound relay, because the leader receives the most.
//
// A member sends its part to the others on its host and to the leader, which must receive it in order with the
// member's other reports. An outbound relay sends its host's parts on when it has all of them; inbound relays forward
// them on their host. The leader needs no relay: it forwards to its own host what it received itself.
#pragma once

#include <cstddef>
#include <vector>

namespace hvd {

class Relays {
 public:
  // Longer parts go directly to each member that needs them, because forwarding copies them more often.
  static constexpr size_t kMostBytes = 1024;

  Relays() = default;
  // `hosts[j]` is any number that identifies member j's host. Member 0 is the leader.
  Relays(const std::vector<int>& hosts, int me) : me_(me) {
    for (size_t j = 0; j < hosts.size(); ++j) {
      std::vector<int> host;
      for (size_t k = 0; k < hosts.size(); ++k) {
        if (hosts[k] == hosts[j]) host.push_back(static_cast<int>(k));
      }
      several_ |= host.size() > 1;
      apart_ |= host.size() < hosts.size();
      host_of_.push_back(std::move(host));
    }
    if (HearerOf(me_) == me_) mates_.assign(HostOf(me_).begin() + 1, HostOf(me_).end());
    for (int j = 1; TellerOf(me_) == me_ && j < static_cast<int>(hosts.size()); ++j) {
      if (!Near(j) && HearerOf(j) == j) hearers_.push_back(j);
    }
    for (int j = 1; any() && me_ != 0 && HearerOf(me_) == me_ && j < static_cast<int>(hosts.size()); ++j) {
      if (!Near(j) && TellerOf(j) == j) tellers_.push_back(j);
    }
  }

  // Return true if anything is forwarded at all.
  bool any() const { return several_ && apart_; }
  // Return true if this member is an inbound or outbound relay of its host.
  bool speaks() const { return HearerOf(me_) == me_ || TellerOf(me_) == me_; }
  // Return the members on a member's host in ascending order.
  const std::vector<int>& HostOf(int member) const { return host_of_[static_cast<size_t>(member)]; }
  // Return true if we send our part to this member ourselves.
  bool Tells(int member) const { return member == 0 || Near(member); }

  // Return the members to which we forward the parts of a member's whole host once all have arrived from these members.
  const std::vector<int>& AudienceFor(int member) const {
    if (Near(member)) return hearers_;
    return me_ == 0 ? mates_ : nobody_;
  }
  // Return the members to which we forward parts that a relay of another host has sent us.
  const std::vector<int>& Mates() const { return mates_; }
  // Outbound relays that send to us, and inbound relays that we send to; between them a link is needed although one
  // side sends nothing. The leader is not listed, because it has a link to each member.
  const std::vector<int>& Tellers() const { return tellers_; }
  const std::vector<int>& Hearers() const { return any() ? hearers_ : nobody_; }
  // Return true if `teller` may forward the parts of `member` to us.
  bool MayTell(int teller, int member) const {
    if (member < 0 || member >= static_cast<int>(host_of_.size()) || Near(member) || me_ == 0) return false;
    return teller == (HearerOf(me_) == me_ ? TellerOf(member) : HearerOf(me_));
  }

 private:
  bool Near(int member) const { return HearerOf(member) == HearerOf(me_); }
  // Return the inbound or outbound relay of a member's host.
  int HearerOf(int member) const { return HostOf(member).front(); }
  int TellerOf(int member) const {
    const std::vector<int>& host = HostOf(member);
    return host.front() == 0 && host.size() > 1 ? host[1] : host.front();
  }

  int me_ = 0;
  bool several_ = false, apart_ = false;
  std::vector<std::vector<int>> host_of_;  // members on the host of each member
  std::vector<int> mates_;                 // if we are the inbound relay: the other members on our host
  std::vector<int> hearers_;  // if we are the outbound relay: inbound relays of other hosts, without the leader
  std::vector<int> tellers_;  // if we are the inbound relay: outbound relays of other hosts
  std::vector<int> nobody_;
};

}  // namespace hvd
