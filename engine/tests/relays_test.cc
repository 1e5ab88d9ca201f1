// SPDX-License-Identifier: Apache-2.0
// Relays, the ranks that forward parts of fast-path collectives between hosts. In every layout each part reaches every
// member once and crosses to each other host once. The leader is the exception: it receives the parts of other hosts
// from each member directly.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>

#include "agreement/relays.h"

using hvd::Relays;

namespace {

// Simulation in which all members send their parts and every relay forwards what it should.
class Telling {
 public:
  explicit Telling(const std::vector<int>& hosts) : hosts_(hosts) {
    for (size_t j = 0; j < hosts.size(); ++j) relays_.emplace_back(hosts, static_cast<int>(j));
    const int members = static_cast<int>(hosts.size());
    for (int from = 0; from < members; ++from) {
      for (int to = 0; to < members; ++to) {
        if (from != to && relays_[static_cast<size_t>(from)].Tells(to)) Send(from, to, {from});
      }
    }
    for (int by = 0; by < members; ++by) {
      for (int of = 0; of < members; ++of) {
        const std::vector<int>& host = relays_[static_cast<size_t>(by)].HostOf(of);
        if (host.front() != of) continue;  // forward once for each host
        for (int to : relays_[static_cast<size_t>(by)].AudienceFor(of)) PassOn(by, to, host);
      }
    }
  }

  std::map<std::pair<int, int>, int> heard;  // {receiver, owner of the part}: how often it arrived
  std::map<int, int> crossings;              // owner of the part: to how many members of other hosts it was sent

 private:
  void Send(int from, int to, const std::vector<int>& parts) {
    for (int part : parts) {
      ++heard[{to, part}];
      crossings[part] += hosts_[static_cast<size_t>(from)] != hosts_[static_cast<size_t>(to)];
    }
  }
  void PassOn(int from, int to, const std::vector<int>& parts) {
    Send(from, to, parts);
    const Relays& receiver = relays_[static_cast<size_t>(to)];
    for (int part : parts) CHECK(receiver.MayTell(from, part));
    if (hosts_[static_cast<size_t>(from)] == hosts_[static_cast<size_t>(to)]) return;
    const std::vector<int>& tellers = receiver.Tellers();
    CHECK((!receiver.any() || from == 0 || std::find(tellers.begin(), tellers.end(), from) != tellers.end()));
    for (int mate : receiver.Mates()) {
      Send(to, mate, parts);
      for (int part : parts) CHECK(relays_[static_cast<size_t>(mate)].MayTell(to, part));
    }
  }

  std::vector<int> hosts_;
  std::vector<Relays> relays_;
};

}  // namespace

TEST_CASE("relays: only between several hosts, one of which has several members") {
  CHECK_FALSE(Relays().any());
  CHECK_FALSE(Relays({7, 7, 7}, 1).any());
  CHECK_FALSE(Relays({1, 2, 3}, 1).any());
  CHECK(Relays({1, 1, 2}, 2).any());
  CHECK(Relays({1, 2, 2}, 0).any());
}

TEST_CASE("relays: every part reaches everybody once, and crosses once to each host") {
  std::mt19937 random(3);
  for (int repeat = 0; repeat < 300; ++repeat) {
    std::vector<int> hosts(2 + random() % 7);
    for (int& host : hosts) host = static_cast<int>(random() % 4);
    const Telling telling(hosts);
    const int members = static_cast<int>(hosts.size());
    for (int who = 0; who < members; ++who) {
      for (int part = 0; part < members; ++part) {
        const auto times = telling.heard.find({who, part});
        CHECK((times == telling.heard.end() ? 0 : times->second) == (who == part ? 0 : 1));
      }
    }
    std::vector<int> different = hosts;
    std::sort(different.begin(), different.end());
    different.erase(std::unique(different.begin(), different.end()), different.end());
    for (const auto& [part, times] : telling.crossings) CHECK(times == static_cast<int>(different.size()) - 1);
  }
}

TEST_CASE("relays: who tells and who hears know of each other") {
  std::mt19937 random(5);
  for (int repeat = 0; repeat < 300; ++repeat) {
    std::vector<int> hosts(2 + random() % 7);
    for (int& host : hosts) host = static_cast<int>(random() % 4);
    const int members = static_cast<int>(hosts.size());
    const auto has = [](const std::vector<int>& list, int member) {
      return std::find(list.begin(), list.end(), member) != list.end();
    };
    for (int one = 0; one < members; ++one) {
      const Relays relays(hosts, one);
      if (!relays.any()) CHECK((relays.Tellers().empty() && relays.Hearers().empty()));
      CHECK_FALSE(has(relays.Hearers(), 0));
      for (int other = 1; one > 0 && other < members; ++other) {  // the leader has a link to each member
        CHECK(has(relays.Hearers(), other) == has(Relays(hosts, other).Tellers(), one));
      }
    }
  }
}

TEST_CASE("relays: nobody else may tell") {
  const std::vector<int> hosts = {1, 1, 2, 2, 3};
  CHECK_FALSE(Relays(hosts, 0).MayTell(2, 3));  // the leader receives from each member directly
  CHECK(Relays(hosts, 1).MayTell(0, 3));
  CHECK_FALSE(Relays(hosts, 1).MayTell(2, 3));
  CHECK_FALSE(Relays(hosts, 1).MayTell(0, 0));
  CHECK(Relays(hosts, 2).MayTell(1, 1));
  // Member 1 forwards the leader's parts, because the leader has more to receive.
  CHECK(Relays(hosts, 2).MayTell(1, 0));
  CHECK_FALSE(Relays(hosts, 2).MayTell(0, 1));  // the leader forwards no parts of member 1
  CHECK(Relays({1, 2, 2}, 1).MayTell(0, 0));    // the leader sends its own part if it is alone on its host
  CHECK_FALSE(Relays(hosts, 2).MayTell(0, 4));
  CHECK_FALSE(Relays(hosts, 2).MayTell(0, 5));
  CHECK_FALSE(Relays(hosts, 2).MayTell(0, -1));
}
