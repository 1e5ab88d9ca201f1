// SPDX-License-Identifier: Apache-2.0
// A rank that is lost between the rendezvous and the first collective: all other ranks learn in time which one.
#include <doctest/doctest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/connector_world.h"
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

// How long a rank may be silent. The other ranks' threads must run more often, even on a busy machine.
constexpr milliseconds kLimit{8000};

// Return the rank's error from Connect, or else from one of its collectives.
Status Outcome(World* world, int rank, const std::vector<hvd::Peer>& peers, int collectives = 1) {
  Status status = world->Connect(peers, 20);
  float one = 1;
  hvd::testing::Rank self(world, rank, static_cast<int>(peers.size()));
  for (int i = 0; i < collectives && status.ok(); ++i) {
    const std::string name = "collective " + std::to_string(i);
    status = self.Run(self.Operation<float>(hvd::OpKind::kAllreduce, name, hvd::DType::kFloat32, {1}, &one, &one));
  }
  return status;
}

// Open a world for the rank, and append the rank to `peers`.
std::unique_ptr<World> OpenWorld(const Case& where, int rank, std::vector<hvd::Peer>* peers) {
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
  std::unique_ptr<World> world = World::Open(identity, settings, &status);
  REQUIRE_MESSAGE(status.ok(), status.text);
  peers->push_back({rank, identity.host, "127.0.0.1", world->tcp_port(), world->local_socket()});
  return world;
}

std::vector<Status> Survivors(const Case& where, Fate fate) {
  std::vector<std::unique_ptr<World>> worlds;
  std::vector<hvd::Peer> peers;
  for (int rank = 0; rank < where.ranks; ++rank) worlds.push_back(OpenWorld(where, rank, &peers));
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

struct Result {
  std::vector<Status> outcomes;
  Clock::duration took;
};

void Check(Fate fate, Clock::duration limit) {
  std::vector<std::future<Result>> results;  // all cases run at the same time, because they mostly wait
  for (const Case& where : kCases) {
    results.push_back(std::async(std::launch::async, [&where, fate] {
      const Clock::time_point start = Clock::now();
      std::vector<Status> outcomes = Survivors(where, fate);
      return Result{std::move(outcomes), Clock::now() - start};
    }));
  }
  for (size_t i = 0; i < kCases.size(); ++i) {
    const Case& where = kCases[i];
    CAPTURE(where.ranks);
    CAPTURE(where.hosts);
    CAPTURE(where.memory);
    CAPTURE(where.victim);
    const Result result = results[i].get();
    CHECK(result.took < limit);
    const std::string name = "rank " + std::to_string(where.victim) + " is lost (on host 'host" +
                             std::to_string(where.victim * where.hosts / where.ranks) + "')";
    for (int rank = 0; rank < where.ranks; ++rank) {
      if (rank == where.victim) continue;
      const Status& outcome = result.outcomes[rank];
      CHECK_MESSAGE(outcome.lost_rank == where.victim, "rank " << rank << ": " << outcome.text);
      CHECK_MESSAGE(outcome.text.find(name) == 0, "rank " << rank << ": " << outcome.text);
    }
  }
}

}  // namespace

TEST_CASE("meeting: a rank that died after the ranks had met is named by all others") {
  Check(Fate::kDead, milliseconds(10000));
}

// Ranks 1 and 2 have no link to each other until the first collective moves bytes between them. Rank 0 reaches both,
// so it finishes the first collective, and receives the error from the second one.
TEST_CASE("meeting: a rank that does not reach one of the others ends the world when the limit is over") {
  const hvd::connector_testing::UnreachablePort unreachable;
  std::vector<std::unique_ptr<World>> worlds;
  std::vector<hvd::Peer> peers;
  for (int rank = 0; rank < 3; ++rank) worlds.push_back(OpenWorld({3, 3, true, -1}, rank, &peers));
  std::vector<Status> outcomes(3);
  std::vector<std::thread> threads;
  const Clock::time_point start = Clock::now();
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<hvd::Peer> seen = peers;
      if (rank == 2) seen[1].port = unreachable.port();
      outcomes[rank] = Outcome(worlds[rank].get(), rank, seen, 2);
      worlds[rank]->Close();
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(Clock::now() - start < kLimit + milliseconds(10000));
  for (const Status& outcome : outcomes) {
    CHECK_MESSAGE(outcome.lost_rank == 1, outcome.text);
    CHECK_MESSAGE(outcome.text.find("rank 2 could not connect to rank 1") != std::string::npos, outcome.text);
  }
}

TEST_CASE("meeting: a rank that says nothing after the ranks had met is named by all others when the limit is over") {
  Check(Fate::kSilent, kLimit + milliseconds(10000));
}
