// SPDX-License-Identifier: Apache-2.0
// Connectors over real loopback sockets: streams are dialed, offered, taken, redialed and abandoned.
#include <doctest/doctest.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/connector_world.h"
#include "transport/connector.h"
#include "transport/frame.h"
#include "transport/handshake.h"
#include "transport/socket.h"

namespace hvd {
namespace {

using namespace connector_testing;

TEST_CASE("all streams between three ranks are made, each with its own keys") {
  Connectors world;
  for (int rank = 0; rank < 3; ++rank) world.Add(Rank(rank));
  world.SetPeers();
  std::vector<StreamKey> keys;
  for (uint16_t stream = 0; stream < 3; ++stream) {
    for (uint16_t lane = 0; lane < 2; ++lane) keys.push_back({-1, 9, 3, lane, stream});
  }
  std::set<std::pair<uint64_t, uint64_t>> session_keys;
  for (int high = 1; high < 3; ++high) {
    for (int low = 0; low < high; ++low) {
      for (StreamKey key : keys) {
        key.peer = low;
        const Stream up = world.Take(world.nodes[high].get(), key);
        key.peer = high;
        const Stream down = world.Take(world.nodes[low].get(), key);
        CheckTalk(up, down, "up");
        CheckTalk(down, up, "down");
        CHECK(world.nodes[high]->watched.count(up.fd) == 1);
        CHECK(world.nodes[low]->watched.count(down.fd) == 1);
        session_keys.insert({up.send_key[0], up.send_key[1]});
      }
    }
  }
  CHECK(session_keys.size() == 18);
  for (auto& node : world.nodes) CHECK(node->connector->refused() == 0);
}

TEST_CASE("dials that are under way at once all arrive at their own keys") {
  Connectors world;
  Node* zero = world.Add(Rank(0));
  Node* one = world.Add(Rank(1));
  world.SetPeers();
  std::set<StreamKey> wanted;
  for (uint32_t channel = 0; channel < 400; ++channel) wanted.insert({0, channel, 0, 0, 0});
  REQUIRE(world.DriveUntil([&] {
    for (auto it = wanted.begin(); it != wanted.end();) {
      Status status;
      const Stream stream = one->connector->Take(*it, &status);
      REQUIRE(status.ok());
      if (stream.fd >= 0) world.taken.insert(stream.fd);
      it = stream.fd >= 0 ? wanted.erase(it) : std::next(it);
    }
    return wanted.empty();
  }));
  const std::vector<StreamKey> offered = zero->connector->Offered();
  REQUIRE(offered.size() == 400);
  for (const StreamKey& key : offered) {
    CHECK(key.peer == 1);
    world.Take(zero, key);
  }
  CHECK(zero->connector->Offered().empty());
}

TEST_CASE("a stream that nobody asked for is offered, and its first bytes wait with it") {
  Connectors world;
  Node* zero = world.Add(Rank(0));
  Node* one = world.Add(Rank(1));
  world.SetPeers();
  const Stream up = world.Take(one, {0, 0, 4, 0, 0});
  FrameWriter writer(up.send_key);
  REQUIRE(writer.Append("early"));
  REQUIRE(writer.Flush(up.fd) == FrameIo::kDone);
  REQUIRE(world.DriveUntil([&] { return !zero->connector->Offered().empty(); }));
  CHECK(zero->connector->Offered() == std::vector<StreamKey>{{1, 0, 4, 0, 0}});
  const Stream down = world.Take(zero, {1, 0, 4, 0, 0});
  FrameReader reader(down.recv_key);
  REQUIRE(reader.Fill(down.fd) == FrameIo::kDone);
  std::string_view payload;
  REQUIRE(reader.Next(&payload) == FrameReader::Result::kMessage);
  CHECK(payload == "early");
}

TEST_CASE("nobody at the address: the dial is repeated and fails in time, with the reason") {
  Connectors world;
  Node* one = world.Add(Rank(1));
  one->connector->limits.dial = milliseconds(100);
  Fd reserved = NewTcpSocket(AF_INET);
  SocketAddress address;
  REQUIRE(ParseAddress("127.0.0.1", 0, &address));
  REQUIRE(bind(reserved.get(), address.get(), address.size) == 0);
  one->connector->SetPeers({{"127.0.0.1", LocalPort(reserved.get())}});
  const Clock::time_point start = Clock::now();
  const Status status = world.Failure(one, {0, 0, 0, 0, 0});
  CHECK(status.code == Code::kFailed);
  CHECK(status.text.find(" s): Connection refused") != std::string::npos);
  CHECK(Clock::now() - start >= milliseconds(100));
  CHECK(Clock::now() - start < milliseconds(20000));
}

TEST_CASE("a peer that never answers: the dial fails in time") {
  Connectors world;
  Node* one = world.Add(Rank(1));
  one->connector->limits.dial = milliseconds(100);
  Fd silent = NewTcpSocket(AF_INET);
  SocketAddress address;
  REQUIRE(ParseAddress("127.0.0.1", 0, &address));
  REQUIRE(bind(silent.get(), address.get(), address.size) == 0);
  REQUIRE(listen(silent.get(), 8) == 0);  // the kernel completes the connection, but no process answers
  one->connector->SetPeers({{"127.0.0.1", LocalPort(silent.get())}});
  const Clock::time_point start = Clock::now();
  CHECK(world.Failure(one, {0, 0, 0, 0, 0}).text.find(" s): no answer") != std::string::npos);
  CHECK(Clock::now() - start < milliseconds(20000));
}

// Return the error of a dial and how long the dial took. An unanswered dial fails after 100 ms, other dials after
// `dial`.
std::pair<std::string, milliseconds> FailureAt(int port, milliseconds dial) {
  Connectors world;
  Node* one = world.Add(Rank(1));
  one->connector->limits.dial = dial;
  one->connector->limits.unanswered = milliseconds(100);
  one->connector->SetPeers({{"127.0.0.1", port}});
  const Clock::time_point start = Clock::now();
  const std::string text = world.Failure(one, {0, 0, 0, 0, 0}).text;
  return {text, std::chrono::duration_cast<milliseconds>(Clock::now() - start)};
}

TEST_CASE("a dial fails early if the peer's host drops the connection") {
  const UnreachablePort unreachable;
  const auto [text, took] = FailureAt(unreachable.port(), milliseconds(60000));
  CHECK_MESSAGE(text.find(" s): no answer") != std::string::npos, text);
  CHECK(took >= milliseconds(100));
  CHECK(took < milliseconds(20000));
}

TEST_CASE("a dial fails early if the peer's host refuses the connection") {
  Fd reserved = NewTcpSocket(AF_INET);
  SocketAddress address;
  REQUIRE(ParseAddress("127.0.0.1", 0, &address));
  REQUIRE(bind(reserved.get(), address.get(), address.size) == 0);
  const auto [text, took] = FailureAt(LocalPort(reserved.get()), milliseconds(60000));
  CHECK_MESSAGE(text.find(" s): Connection refused") != std::string::npos, text);
  CHECK(took >= milliseconds(100));
  CHECK(took < milliseconds(20000));
}

TEST_CASE("a dial goes on while the peer's host holds the connection") {
  Fd frozen = NewTcpSocket(AF_INET);
  SocketAddress address;
  REQUIRE(ParseAddress("127.0.0.1", 0, &address));
  REQUIRE(bind(frozen.get(), address.get(), address.size) == 0);
  REQUIRE(listen(frozen.get(), 8) == 0);
  const auto [text, took] = FailureAt(LocalPort(frozen.get()), milliseconds(1000));
  CHECK_MESSAGE(text.find(" s): no answer") != std::string::npos, text);
  CHECK(took >= milliseconds(1000));
}

TEST_CASE("a socket that has met itself is recognised") {
  SocketAddress address;
  Fd fd = NewTcpSocket(AF_INET);
  REQUIRE(ParseAddress("127.0.0.1", 0, &address));
  REQUIRE(bind(fd.get(), address.get(), address.size) == 0);
  REQUIRE(ParseAddress("127.0.0.1", LocalPort(fd.get()), &address));
  const int result = connect(fd.get(), address.get(), address.size);
  REQUIRE((result == 0 || errno == EINPROGRESS));
  CHECK(IsConnectedToItself(fd.get()));

  Connectors world;
  Fd other = Stranger(world.Add(Rank(0))->connector->port());
  CHECK_FALSE(IsConnectedToItself(other.get()));
}

TEST_CASE("a peer that comes late is found") {
  Connectors world;
  Node* one = world.Add(Rank(1));
  Fd late = NewTcpSocket(AF_INET);
  SocketAddress address;
  REQUIRE(ParseAddress("127.0.0.1", 0, &address));
  REQUIRE(bind(late.get(), address.get(), address.size) == 0);
  one->connector->SetPeers({{"127.0.0.1", LocalPort(late.get())}});
  const ConnectorIdentity zero = Rank(0);
  const Clock::time_point start = Clock::now();
  bool listening = false;
  Fd accepted;
  std::optional<Handshake> acceptor;
  Stream stream;
  Status status;
  REQUIRE(world.UntilAwake([&] {
    if (!listening && Clock::now() - start > milliseconds(50)) listening = listen(late.get(), 8) == 0;
    if (listening && !accepted) accepted.Reset(accept4(late.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (accepted && !acceptor) acceptor = Handshake::Accept(accepted.get(), zero);
    if (acceptor) acceptor->Step();
    return (stream = one->connector->Take({0, 0, 0, 0, 0}, &status)).fd >= 0 || !status.ok();
  }));
  REQUIRE(stream.fd >= 0);
  world.taken.insert(stream.fd);
}

TEST_CASE("IPv6 addresses work where the machine has them") {
  SocketAddress address;
  REQUIRE(ParseAddress("::1", 0, &address));
  Fd probe = NewTcpSocket(AF_INET6);
  if (!probe || bind(probe.get(), address.get(), address.size) != 0) {
    MESSAGE("no IPv6 loopback here");
    return;
  }
  probe.Reset();
  const std::pair<const char*, const char*> cases[] = {{"::1", "::1"}, {"::", "::1"}, {"::", "127.0.0.1"}};
  for (const auto& [listen_on, dial_to] : cases) {
    Connectors world;
    Node* zero = world.Add(Rank(0), listen_on);
    Node* one = world.Add(Rank(1), listen_on);
    world.SetPeers(dial_to);
    CheckLink(&world, zero, 0, one, 1);
  }
}

TEST_CASE("CloseAll closes everything and leaves the watcher alone") {
  Connectors world;
  Node* zero = world.Add(Rank(0));
  Node* one = world.Add(Rank(1));
  world.SetPeers();
  world.Take(one, {0, 0, 0, 0, 0});
  Fd stranger = Stranger(zero->connector->port());
  while (zero->connector->Progress()) continue;
  const std::set<int> watched = zero->watched;
  CHECK(watched.size() == 3);  // the listener, an offered stream, and a stranger's connection
  const int before = OpenDescriptors();
  zero->connector->CloseAll();
  CHECK(OpenDescriptors() == before - 3);
  CHECK(zero->watched == watched);
  CHECK_FALSE(zero->connector->Progress());
  Status status;
  CHECK(zero->connector->Take({1, 0, 0, 0, 0}, &status).fd == -1);
  CHECK(status.text.find("forked") != std::string::npos);
}

TEST_CASE("what cannot work is refused with a reason") {
  Status status;
  ConnectorIdentity me = Rank(0);
  const Connector::Watcher watcher = {[](int) {}, [](int) {}};
  for (const char* address : {"localhost", "", "1.2.3", "127.0.0.1:80", "::1%nosuchdevice"}) {
    CHECK_FALSE(Connector::Listen(me, address, watcher, &status));
    CHECK(status.code == Code::kInvalid);
  }
  CHECK_FALSE(Connector::Listen(me, "203.0.113.1", watcher, &status));  // not an address of this machine
  CHECK(status.text.find("cannot listen on 203.0.113.1") == 0);
  me.secret.clear();
  CHECK_FALSE(Connector::Listen(me, "127.0.0.1", watcher, &status));
  CHECK(status.text.find("no secret") == 0);

  Connectors world;
  Node* three = world.Add(Rank(3));
  for (int peer : {-1, 3, 0}) {  // no rank, the rank itself, and a rank whose address is unknown
    CHECK(three->connector->Take({peer, 0, 0, 0, 0}, &status).fd == -1);
    CHECK(status.code == Code::kInvalid);
  }
  three->connector->SetPeers({{"localhost", 80}, {"127.0.0.1", 0}});
  for (int peer : {0, 1}) {
    CHECK(three->connector->Take({peer, 0, 0, 0, 0}, &status).fd == -1);
    CHECK(status.text.find("not a numeric address") != std::string::npos);
  }
}

}  // namespace
}  // namespace hvd
