// SPDX-License-Identifier: Apache-2.0
// Two mailboxes over a TCP link, one of which closes.
#include "transport/mailbox.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/connector_world.h"

namespace {

using hvd::Connector;
using hvd::Mailbox;
using hvd::Neighbours;
using hvd::connector_testing::Connectors;
using hvd::connector_testing::Rank;

constexpr int kLow = 0, kHigh = 1;

// Two ranks without shared memory, connected by a link over which each has received a message.
struct Pair {
  Connectors world;
  Connector* connectors[2] = {world.Add(Rank(kLow))->connector.get(), world.Add(Rank(kHigh))->connector.get()};
  Neighbours nobody{Rank(kLow), "host"};
  Mailbox low{kLow, nullptr, &nobody, connectors[kLow]};
  Mailbox high{kHigh, nullptr, &nobody, connectors[kHigh]};
  std::vector<std::string> heard_low, heard_high;

  Pair() {
    world.SetPeers();
    low.Send(kHigh, "hello from below");
    high.Send(kLow, "hello from above");
    REQUIRE(world.UntilAwake([this] {
      Flush();
      return ReceiveLow() && heard_high.size() == 1;
    }));
  }

  void Flush() {
    low.Flush();
    high.Flush();
    high.Receive([this](int, std::string_view message) { heard_high.emplace_back(message); }, true);
  }
  bool ReceiveLow() {
    low.Receive([this](int, std::string_view message) { heard_low.emplace_back(message); }, true);
    return !heard_low.empty();
  }
};

}  // namespace

TEST_CASE("mailbox: the last words of a peer that has closed are read, though nothing can be sent to it any more") {
  Pair pair;
  pair.heard_low.clear();
  // Unread bytes make the kernel reset the connection when it is closed, so that sending fails.
  pair.low.Send(kHigh, "never read");
  pair.high.Send(kLow, "why I leave");
  pair.high.CloseDescriptors();
  pair.low.Send(kHigh, "into the void");
  pair.low.Send(kHigh, "and once more");
  CHECK(pair.low.unread());
  CHECK(pair.low.AllSent());
  CHECK(pair.low.TakeBroken().empty());
  pair.ReceiveLow();
  CHECK(pair.heard_low == std::vector<std::string>{"why I leave"});
  CHECK_FALSE(pair.low.unread());
  const auto broken = pair.low.TakeBroken();
  REQUIRE(broken.size() == 1);
  CHECK(broken[0].first == kHigh);
}

TEST_CASE("mailbox: a refusal met while handling a message leaves no message behind") {
  Pair pair;
  pair.low.Send(kHigh, "never read");
  pair.high.Send(kLow, "first");
  pair.high.Send(kLow, "second");
  pair.high.CloseDescriptors();
  std::vector<std::string> heard;
  pair.low.Receive(
      [&](int, std::string_view message) {
        heard.emplace_back(message);
        pair.low.Send(kHigh, "an answer");
      },
      true);
  CHECK(heard == std::vector<std::string>{"first", "second"});
  CHECK(pair.low.TakeBroken().size() == 1);
}

TEST_CASE("mailbox: an event is remembered until what came is read") {
  Pair pair;
  CHECK_FALSE(pair.low.unread());
  for (int fd : pair.world.nodes[kLow]->watched) pair.low.OnEvent(fd);
  CHECK(pair.low.unread());
  pair.ReceiveLow();
  CHECK_FALSE(pair.low.unread());
}
