// SPDX-License-Identifier: Apache-2.0
// Who passes small parts on (see express.h) in a set that has hosts with several members: a part crosses to another
// host once, not once for each member there. The first member of each host hears for it, and tells the others of other
// hosts; but the leader, which has most to hear, leaves the telling to the second one of its host.
//
// A member tells its part to the others on its host, and to the leader, which must hear it in one order with all else
// that the member reports. Who tells for a host does so when it has the parts of all of it; those that hear for their
// hosts pass them on. The leader need not be told: it tells its own host what it heard.
#pragma once

#include <cstddef>
#include <vector>

namespace hvd {

class Relays {
 public:
  // Longer parts had better go to each member that needs them: what is passed on is copied more often.
  static constexpr size_t kMostBytes = 1024;

  Relays() = default;
  // `hosts[j]`: any number that identifies member j's host. Member 0 is the leader.
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

  // Whether anything is passed on at all.
  bool any() const { return several_ && apart_; }
  // Whether we hear or tell for our host.
  bool speaks() const { return HearerOf(me_) == me_ || TellerOf(me_) == me_; }
  // The members on a member's host, in their order.
  const std::vector<int>& HostOf(int member) const { return host_of_[static_cast<size_t>(member)]; }
  // Whether we tell this member our part ourselves.
  bool Tells(int member) const { return member == 0 || Near(member); }

  // To whom we tell the parts of a member's whole host once we have heard them all, from those members themselves.
  const std::vector<int>& AudienceFor(int member) const {
    if (Near(member)) return hearers_;
    return me_ == 0 ? mates_ : nobody_;
  }
  // To whom we pass on what another member told us of a third one's part; and whether that is for it to tell.
  const std::vector<int>& Mates() const { return mates_; }
  // Who tells us, although we may have nothing to tell it; and whom we tell. The leader is among neither: it has a link
  // to each member.
  const std::vector<int>& Tellers() const { return tellers_; }
  const std::vector<int>& Hearers() const { return any() ? hearers_ : nobody_; }
  bool MayTell(int teller, int member) const {
    if (member < 0 || member >= static_cast<int>(host_of_.size()) || Near(member) || me_ == 0) return false;
    return teller == (HearerOf(me_) == me_ ? TellerOf(member) : HearerOf(me_));
  }

 private:
  bool Near(int member) const { return HearerOf(member) == HearerOf(me_); }
  // For a member's host.
  int HearerOf(int member) const { return HostOf(member).front(); }
  int TellerOf(int member) const {
    const std::vector<int>& host = HostOf(member);
    return host.front() == 0 && host.size() > 1 ? host[1] : host.front();
  }

  int me_ = 0;
  bool several_ = false, apart_ = false;
  std::vector<std::vector<int>> host_of_;  // by member
  std::vector<int> mates_;                 // if we hear for our host: the others there
  std::vector<int> hearers_;               // if we tell for it: who hears for other hosts, but for the leader
  std::vector<int> tellers_;               // if we hear: who tells for other hosts
  std::vector<int> nobody_;
};

}  // namespace hvd
