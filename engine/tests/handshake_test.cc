// SPDX-License-Identifier: Apache-2.0
// The handshake over unix socket pairs, with a relay between the two ends that can record, delay and change every byte.
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "transport/handshake.h"
#include "transport/socket.h"

namespace hvd {
namespace {

using Outcome = Handshake::Outcome;

ConnectorIdentity Rank(int rank) { return {rank, "world", 7, "a secret of the job"}; }
const StreamKey kKey = {2, 5, 6, 7, 8};

bool SameKey(const uint64_t a[2], const uint64_t b[2]) { return a[0] == b[0] && a[1] == b[1]; }

// One direction of the relay.
struct Wire {
  std::string passed;
  int flip_at = -1;           // index of the byte to change, or -1
  size_t at_once = 1u << 16;  // bytes moved in each step

  bool Move(int from, int to) {
    char bytes[1024];
    ssize_t n = ReceiveSome(from, bytes, std::min(at_once, sizeof bytes));
    if (n <= 0) return false;
    const auto size = static_cast<size_t>(n);
    const auto flip = static_cast<size_t>(flip_at);
    if (flip_at >= 0 && flip >= passed.size() && flip < passed.size() + size) bytes[flip - passed.size()] ^= 1;
    passed.append(bytes, size);
    return SendSome(to, bytes, size) == n;
  }
};

struct Meeting {
  ConnectorIdentity dialer_identity = Rank(4), acceptor_identity = Rank(2);
  uint8_t dialer_version = Handshake::kProtocolVersion, acceptor_version = Handshake::kProtocolVersion;
  StreamKey key = kKey;
  Wire up, down;  // `up` runs from the dialer to the acceptor, `down` back
  std::array<Fd, 4> ends;
  std::optional<Handshake> dialer, acceptor;

  void Run() {
    for (int i = 0; i < 4; i += 2) {
      int fds[2];
      REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
      ends[i].Reset(fds[0]);
      ends[i + 1].Reset(fds[1]);
    }
    dialer = Handshake::Dial(ends[0].get(), dialer_identity, key, dialer_version);
    acceptor = Handshake::Accept(ends[3].get(), acceptor_identity, acceptor_version);
    for (bool moved = true; moved;) {
      moved = up.Move(ends[1].get(), ends[2].get());
      moved |= down.Move(ends[2].get(), ends[1].get());
      if (dialer->outcome() == Outcome::kInProgress) moved |= dialer->Step();
      if (acceptor->outcome() == Outcome::kInProgress) moved |= acceptor->Step();
      if (dialer->outcome() != Outcome::kInProgress && dialer->outcome() != Outcome::kReady) ends[2].Reset();
    }
  }
};

TEST_CASE("two ranks with the same secret agree on the stream and on its keys") {
  for (size_t at_once : {1u, 3u, 1000u}) {
    Meeting meeting;
    meeting.up.at_once = meeting.down.at_once = at_once;
    meeting.Run();
    REQUIRE(meeting.dialer->outcome() == Outcome::kReady);
    REQUIRE(meeting.acceptor->outcome() == Outcome::kReady);
    CHECK(meeting.acceptor->key() == StreamKey{4, 5, 6, 7, 8});
    const Stream near = meeting.dialer->stream(), far = meeting.acceptor->stream();
    CHECK(near.fd == meeting.ends[0].get());
    CHECK(far.fd == meeting.ends[3].get());
    CHECK(SameKey(near.send_key, far.recv_key));
    CHECK(SameKey(near.recv_key, far.send_key));
    CHECK_FALSE(SameKey(near.send_key, near.recv_key));
    CHECK(meeting.up.passed.size() == 40 + 88);
    CHECK(meeting.down.passed.size() == 64 + 33);
    CHECK((meeting.up.passed + meeting.down.passed).find(meeting.dialer_identity.secret) == std::string::npos);
  }
}

TEST_CASE("every handshake has keys of its own") {
  Meeting first, second;
  first.Run();
  second.Run();
  CHECK_FALSE(SameKey(first.dialer->stream().send_key, second.dialer->stream().send_key));
}

TEST_CASE("a byte changed on the way is noticed wherever it is") {
  for (int at = 0; at < 128; ++at) {
    Meeting meeting;
    meeting.up.flip_at = at;
    meeting.Run();
    REQUIRE(meeting.dialer->outcome() != Outcome::kReady);
    REQUIRE(meeting.acceptor->outcome() != Outcome::kReady);
  }
  for (int at = 0; at < 97; ++at) {
    Meeting meeting;
    meeting.down.flip_at = at;
    meeting.Run();
    REQUIRE(meeting.dialer->outcome() == Outcome::kUnproven);
  }
}

TEST_CASE("a wrong secret is noticed by the dialer first, which then tells nothing") {
  Meeting meeting;
  meeting.dialer_identity.secret += "!";
  meeting.Run();
  CHECK(meeting.dialer->outcome() == Outcome::kUnproven);
  CHECK(meeting.dialer->problem().find("secret") != std::string::npos);
  CHECK(meeting.acceptor->outcome() == Outcome::kBroken);
  CHECK(meeting.up.passed.size() == 40);
}

void CheckRefusal(Meeting* meeting, const char* reason) {
  meeting->Run();
  CHECK(meeting->dialer->outcome() == Outcome::kRefused);
  CHECK(meeting->acceptor->outcome() == Outcome::kRefused);
  CHECK(meeting->dialer->problem().find(reason) != std::string::npos);
  CHECK(meeting->acceptor->problem() == meeting->dialer->problem());
}

TEST_CASE("a peer that belongs elsewhere is told why") {
  Meeting meeting;
  SUBCASE("older dialer") {
    meeting.dialer_version = 0;
    CheckRefusal(&meeting, "protocol versions");
  }
  SUBCASE("newer dialer") {
    meeting.dialer_version = Handshake::kProtocolVersion + 1;
    CheckRefusal(&meeting, "protocol versions");
  }
  SUBCASE("generation") {
    meeting.dialer_identity.generation = 8;
    CheckRefusal(&meeting, "generations");
  }
  SUBCASE("world") {
    meeting.dialer_identity.world_id = "world2";
    CheckRefusal(&meeting, "different jobs");
  }
  SUBCASE("rank") {
    meeting.key.peer = 3;
    CheckRefusal(&meeting, "rank other than");
  }
}

TEST_CASE("whoever refuses lets the peer close first, so that the reason is not overtaken by a reset") {
  int fds[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
  Fd near(fds[0]), far(fds[1]);
  const ConnectorIdentity four = Rank(4), two = Rank(2);
  Handshake dialer = Handshake::Dial(near.get(), four, kKey, Handshake::kProtocolVersion + 1);
  Handshake acceptor = Handshake::Accept(far.get(), two);
  dialer.Step();
  acceptor.Step();
  CHECK(acceptor.outcome() == Outcome::kInProgress);
  dialer.Step();
  CHECK(dialer.outcome() == Outcome::kRefused);
  acceptor.Step();
  CHECK(acceptor.outcome() == Outcome::kInProgress);
  near.Reset();
  acceptor.Step();
  CHECK(acceptor.outcome() == Outcome::kRefused);
}

TEST_CASE("bytes that follow the handshake are left in the socket") {
  int fds[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
  Fd near(fds[0]), far(fds[1]);
  const ConnectorIdentity four = Rank(4), two = Rank(2);
  Handshake dialer = Handshake::Dial(near.get(), four, kKey), acceptor = Handshake::Accept(far.get(), two);
  for (int turn = 0; turn < 3; ++turn) {
    dialer.Step();
    acceptor.Step();
  }
  REQUIRE(acceptor.outcome() == Outcome::kReady);
  REQUIRE(SendSome(far.get(), "next", 4) == 4);  // sent before the dialer has read the acceptor's decision
  dialer.Step();
  REQUIRE(dialer.outcome() == Outcome::kReady);
  char bytes[16];
  REQUIRE(ReceiveSome(near.get(), bytes, sizeof bytes) == 4);
  CHECK(std::string(bytes, 4) == "next");
}

}  // namespace
}  // namespace hvd
