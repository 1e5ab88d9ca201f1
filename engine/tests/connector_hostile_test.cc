// SPDX-License-Identifier: Apache-2.0
// Peers that must not connect: wrong secret, world, generation or rank, strangers, slow peers, crowds, replays.
#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "tests/connector_world.h"
#include "transport/connector.h"
#include "transport/handshake.h"
#include "transport/socket.h"

namespace hvd {
namespace {

using namespace connector_testing;

TEST_CASE("a peer with a wrong secret gets nowhere, and the right one still gets through") {
  Connectors world;
  Node* zero = world.Add(Rank(0));
  ConnectorIdentity wrong = Rank(1);
  wrong.secret = "another secret";
  Node* impostor = world.Add(wrong);
  world.SetPeers();
  impostor->connector->limits.dial = milliseconds(3000);  // long enough for at least one answer on a busy machine
  Status status = world.Failure(impostor, {0, 0, 0, 0, 0});
  CHECK(status.code == Code::kFailed);
  CHECK(status.text.find("rank 1 could not connect to rank 0 at 127.0.0.1:") == 0);
  CHECK(status.text.find("does not know this job's secret") != std::string::npos);
  REQUIRE(world.DriveUntil([&] { return zero->connector->refused() == impostor->connector->refused(); }));
  CHECK(zero->connector->Offered().empty());

  impostor->connector->limits.dial = milliseconds(30000);
  const uint64_t before = impostor->connector->refused();
  CHECK(impostor->connector->Take({0, 1, 0, 0, 0}, &status).fd == -1);  // the impostor keeps dialing
  Node* one = world.Add(Rank(1));
  world.SetPeers();
  CheckLink(&world, zero, 0, one, 1);
  REQUIRE(world.DriveUntil([&] { return impostor->connector->refused() >= before + 3; }));
}

TEST_CASE("a peer of another generation or world is told so at once, and the right one still gets through") {
  Connectors world;
  Node* zero = world.Add(Rank(0));
  ConnectorIdentity late = Rank(1), foreign = Rank(1);
  late.generation = 6;
  foreign.world_id = "world of others";
  Node* late_node = world.Add(late);
  Node* foreign_node = world.Add(foreign);
  world.SetPeers();
  const Clock::time_point start = Clock::now();
  const Status first = world.Failure(late_node, {0, 0, 0, 0, 0});
  CHECK(first.text.find("different generations") != std::string::npos);
  CHECK(world.Failure(foreign_node, {0, 0, 0, 0, 0}).text.find("different jobs") != std::string::npos);
  CHECK(Clock::now() - start < milliseconds(10000));                    // far less than the dial limit
  CHECK(world.Failure(late_node, {0, 0, 0, 0, 0}).text == first.text);  // the error is final
  REQUIRE(world.DriveUntil([&] { return zero->connector->refused() == 2; }));

  Node* one = world.Add(Rank(1));
  world.SetPeers();
  CheckLink(&world, zero, 0, one, 1);
}

TEST_CASE("an address that leads to the wrong rank is noticed") {
  Connectors world;
  world.Add(Rank(0));
  world.Add(Rank(1));
  Node* two = world.Add(Rank(2));
  world.SetPeers();
  std::vector<std::pair<std::string, int>> swapped = {{"127.0.0.1", world.nodes[1]->connector->port()},
                                                      {"127.0.0.1", world.nodes[0]->connector->port()}};
  two->connector->SetPeers(swapped);
  CHECK(world.Failure(two, {0, 0, 0, 0, 0}).text.find("rank other than") != std::string::npos);
}

TEST_CASE("strangers that speak garbage, half a message or nothing do no harm") {
  Connectors world;
  Node* zero = world.Add(Rank(0));
  const int port = zero->connector->port();
  std::vector<Fd> strangers;
  const std::string greeting = std::string("HVDLINK\x01") + std::string(32, 'n');
  const std::string inputs[] = {std::string(100, 'x'), "GET / HTTP/1.1\r\nHost: example\r\nAccept: */*\r\n\r\n",
                                greeting + std::string(88, 'p'), std::string(4096, '\xff')};
  for (const std::string& input : inputs) {
    strangers.push_back(Stranger(port));
    REQUIRE(SendSome(strangers.back().get(), input.data(), input.size()) > 0);
  }
  for (size_t half = 0; half < greeting.size() + 88; half += 7) {
    Fd stranger = Stranger(port);
    const std::string bytes = (greeting + std::string(88, 'p')).substr(0, half);
    if (half > 0) REQUIRE(SendSome(stranger.get(), bytes.data(), bytes.size()) > 0);
  }  // each descriptor closes here
  Node* one = world.Add(Rank(1));
  world.SetPeers();
  CheckLink(&world, zero, 0, one, 1);
  // The stranger that sent nothing does not count as refused, because a peer that probes the port behaves like this.
  REQUIRE(world.DriveUntil([&] { return zero->connector->refused() == 4 + 18; }));
}

TEST_CASE("a slow handshake is dropped in time, however often it moves") {
  Connectors world;
  Node* zero = world.Add(Rank(0));
  zero->connector->limits.handshake = milliseconds(100);
  Fd slow = Stranger(zero->connector->port());
  const Clock::time_point start = Clock::now();
  Clock::time_point last = start;
  int sent = 0;
  REQUIRE(world.UntilAwake([&] {
    if (Clock::now() - last > milliseconds(5) && sent < 39) {  // stop before the greeting is complete
      last = Clock::now();
      sent += SendSome(slow.get(), "H", 1) == 1;
    }
    return zero->connector->refused() == 1;
  }));
  CHECK(Clock::now() - start >= milliseconds(100));
  CHECK(Clock::now() - start < milliseconds(20000));
  CHECK(zero->connector->NextWakeup() == milliseconds::max());
}

TEST_CASE("hundreds of idle connections do not stop a genuine peer") {
  Connectors world;
  Node* zero = world.Add(Rank(0));
  // Long enough for all to connect before the first one times out.
  zero->connector->limits.handshake = milliseconds(4000);
  std::vector<Fd> idle;
  for (int i = 0; i < 300; ++i) idle.push_back(Stranger(zero->connector->port()));
  while (zero->connector->Progress()) continue;
  CHECK(zero->watched.size() == 1 + 256);  // the oldest connections were closed to make room
  Node* one = world.Add(Rank(1));
  world.SetPeers();
  const Clock::time_point start = Clock::now();
  CheckLink(&world, zero, 0, one, 1);
  CHECK(Clock::now() - start < milliseconds(20000));
  REQUIRE(world.DriveUntil([&] { return zero->connector->refused() == 300; }));
  CHECK(zero->watched.size() == 2);  // the listener and the stream that was taken
}

// Relay a genuine dialer's bytes to `port`, and return the bytes that the dialer sent.
std::string RecordHandshake(Connectors* world, int port) {
  int fds[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
  Fd near(fds[0]), far(fds[1]), link = Stranger(port);
  const ConnectorIdentity one = Rank(1);
  Handshake dialer = Handshake::Dial(near.get(), one, {0, 0, 0, 0, 0});
  std::string said;
  char bytes[1024];
  REQUIRE(world->UntilAwake([&] {
    ssize_t n = ReceiveSome(far.get(), bytes, sizeof bytes);
    if (n > 0) said.append(bytes, SendSome(link.get(), bytes, static_cast<size_t>(n)));
    n = ReceiveSome(link.get(), bytes, sizeof bytes);
    if (n > 0) SendSome(far.get(), bytes, static_cast<size_t>(n));
    dialer.Step();
    return dialer.outcome() != Handshake::Outcome::kInProgress;
  }));
  REQUIRE(dialer.outcome() == Handshake::Outcome::kReady);
  return said;
}

TEST_CASE("a recorded handshake cannot be used again") {
  Connectors world;
  Node* zero = world.Add(Rank(0));
  const std::string said = RecordHandshake(&world, zero->connector->port());
  REQUIRE(said.size() == 40 + 88);
  world.Take(zero, {1, 0, 0, 0, 0});
  Fd replay = Stranger(zero->connector->port());
  REQUIRE(SendSome(replay.get(), said.data(), said.size()) == static_cast<ssize_t>(said.size()));
  REQUIRE(world.DriveUntil([&] { return zero->connector->refused() == 1; }));
  CHECK(zero->connector->Offered().empty());
}

TEST_CASE("a peer that dials again replaces the stream that it has lost") {
  Connectors world;
  Node* zero = world.Add(Rank(0));
  RecordHandshake(&world, zero->connector->port());  // its dialer's end is closed by now
  REQUIRE(zero->connector->Offered().size() == 1);
  Node* one = world.Add(Rank(1));
  world.SetPeers();
  const Stream up = world.Take(one, {0, 0, 0, 0, 0});
  REQUIRE(world.DriveUntil([&] { return zero->watched.size() == 2; }));
  CheckTalk(up, world.Take(zero, {1, 0, 0, 0, 0}), "hello");
}

TEST_CASE("a lower rank may not dial a higher one") {
  Connectors world;
  Node* three = world.Add(Rank(3));
  Fd link = Stranger(three->connector->port());
  const ConnectorIdentity one = Rank(1);
  Handshake dialer = Handshake::Dial(link.get(), one, {3, 0, 0, 0, 0});
  REQUIRE(world.UntilAwake([&] { return dialer.Step(), three->connector->refused() == 1; }));
  CHECK(three->connector->Offered().empty());
}

}  // namespace
}  // namespace hvd
