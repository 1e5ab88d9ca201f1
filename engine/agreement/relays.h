// SPDX-License-Identifier: Apache-2.0
// Who passes small parts on (see express.h) in a set that has hosts with several members: a part crosses to another
// host once, not once for each member there. The first member of each host speaks for it.
//
// A member tells its part to the others on its host, and to the leader, which must hear it in one order with all else
// that the member reports. A speaker that has the parts of its whole host tells them to the other hosts' speakers, who
// pass them on; to the leader it need not, which tells its own host what it heard.
#pragma once

#include <algorithm>
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
  }

  // Whether anything is passed on at all.
  bool any() const { return several_ && apart_; }
  bool speaks() const { return SpeakerOf(me_) == me_; }
  // The members on a member's host, in their order.
  const std::vector<int>& HostOf(int member) const { return host_of_[static_cast<size_t>(member)]; }
  // Whether we tell this member our part ourselves.
  bool Tells(int member) const { return member == 0 || Near(member); }

  // To whom we tell the parts of a member's whole host once we have heard them all, from those members themselves.
  std::vector<int> AudienceFor(int member) const {
    if (!speaks()) return {};
    if (!Near(member)) return me_ == 0 ? Mates() : std::vector<int>();
    std::vector<int> speakers;
    for (int j = 1; j < static_cast<int>(host_of_.size()); ++j) {
      if (!Near(j) && SpeakerOf(j) == j) speakers.push_back(j);
    }
    return speakers;
  }
  // To whom we pass on what another member told us of a third one's part; and whether that is for it to tell.
  std::vector<int> Mates() const {
    std::vector<int> mates;
    if (speaks()) std::copy(HostOf(me_).begin() + 1, HostOf(me_).end(), std::back_inserter(mates));
    return mates;
  }
  bool MayTell(int teller, int member) const {
    if (member < 0 || member >= static_cast<int>(host_of_.size()) || Near(member) || me_ == 0) return false;
    return teller == SpeakerOf(speaks() ? member : me_);
  }

 private:
  bool Near(int member) const { return SpeakerOf(member) == SpeakerOf(me_); }
  int SpeakerOf(int member) const { return HostOf(member).front(); }

  int me_ = 0;
  bool several_ = false, apart_ = false;
  std::vector<std::vector<int>> host_of_;  // by member
};

}  // namespace hvd
