// SPDX-License-Identifier: Apache-2.0
// A rank that is lost between the meeting and the first collective: everybody else learns who, in time.
#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/whole_world.h"

namespace {

using hvd::Status;
using hvd::World;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

enum class Fate { kDead, kSilent };
struct Case {
  int ranks, hosts;
  bool memory;
  int victim;
};

constexpr milliseconds kLimit{1000};

// What a rank hears: from Connect, or else from the first collective.
Status Outcome(World* world, int rank, const std::vector<hvd::Peer>& peers) {
  Status status = world->Connect(peers, 20);
  if (!status.ok()) return status;
  float one = 1;
  hvd::testing::Rank self(world, rank, static_cast<int>(peers.size()));
  return self.Run(self.Operation<float>(hvd::OpKind::kAllreduce, "first", hvd::DType::kFloat32, {1}, &one, &one));
}

std::vector<Status> Survivors(const Case& where, Fate fate) {
  std::vector<std::unique_ptr<World>> worlds;
  std::vector<hvd::Peer> peers;
  for (int rank = 0; rank < where.ranks; ++rank) {
    hvd::Identity identity;
    identity.rank = rank;
    identity.size = where.ranks;
    identity.host = "host" + std::to_string(rank * where.hosts / where.ranks);
    identity.world_id = "test";
    identity.secret = "a secret of the test";
    hvd::Settings settings;
    settings.shared_memory = where.memory;
    settings.peer_timeout_ms = kLimit.count();
    settings.spin_us = 0;
    Status status;
    worlds.push_back(World::Open(identity, settings, &status));
    REQUIRE_MESSAGE(status.ok(), status.text);
    peers.push_back({rank, identity.host, "127.0.0.1", worlds[rank]->tcp_port(), worlds[rank]->local_socket()});
  }
  if (fate == Fate::kDead) worlds[where.victim].reset();
  std::vector<Status> outcomes(where.ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < where.ranks; ++rank) {
    if (rank == where.victim) continue;
    threads.emplace_back([&, rank] {
      outcomes[rank] = Outcome(worlds[rank].get(), rank, peers);
      worlds[rank]->Close();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

const std::vector<Case> kCases = {
    {2, 1, true, 0}, {2, 1, false, 1}, {4, 1, true, 2}, {4, 1, false, 0}, {4, 2, true, 3}, {4, 4, true, 1},
};

void Check(Fate fate, Clock::duration limit) {
  for (const Case& where : kCases) {
    CAPTURE(where.ranks);
    CAPTURE(where.hosts);
    CAPTURE(where.memory);
    CAPTURE(where.victim);
    const Clock::time_point start = Clock::now();
    const std::vector<Status> outcomes = Survivors(where, fate);
    CHECK(Clock::now() - start < limit);
    const std::string name = "rank " + std::to_string(where.victim) + " is lost (on host 'host" +
                             std::to_string(where.victim * where.hosts / where.ranks) + "')";
    for (int rank = 0; rank < where.ranks; ++rank) {
      if (rank == where.victim) continue;
      CHECK_MESSAGE(outcomes[rank].lost_rank == where.victim, "rank " << rank << ": " << outcomes[rank].text);
      CHECK_MESSAGE(outcomes[rank].text.find(name) == 0, "rank " << rank << ": " << outcomes[rank].text);
    }
  }
}

}  // namespace

TEST_CASE("meeting: a rank that died after the ranks had met is named by all others") {
  Check(Fate::kDead, milliseconds(10000));
}

TEST_CASE("meeting: a rank that says nothing after the ranks had met is named by all others when the limit is over") {
  Check(Fate::kSilent, kLimit + milliseconds(10000));
}
