// SPDX-License-Identifier: Apache-2.0
// Random programs on ranks whose messages take random time. A rank that is reported as certainly stuck never moves
// again, and every rank that is stuck in the end is reported.
#include <doctest/doctest.h>

#include <deque>
#include <functional>
#include <memory>
#include <random>

#include "agreement/coordinator.h"
#include "agreement/deadlocks.h"
#include "tests/coordinator_helpers.h"
#include "tests/repeats.h"

namespace hvd {
namespace {

struct Call {
  size_t set;
  std::string name;
  bool waits;  // if false, the next call follows at once, without waiting for this one
};

// Simulation of ranks that run one program each on their only thread, with the leaders of three sets and a message
// queue between each two.
class Simulation {
 public:
  static constexpr int kRanks = 3;
  static constexpr int kSteps = 4000;  // many more than the programs need

  explicit Simulation(unsigned seed) : random_(seed), queues_(kRanks * kSets * 2 + kRanks) {
    const std::vector<int> sets[kSets] = {{0, 1, 2}, {0, 1}, {1, 2}};
    for (const auto& ranks : sets)
      leaders_.push_back({ranks, std::make_unique<Coordinator>(ranks, CoordinatorOptions())});
    std::vector<Call> common;
    for (int i = 0; i < 6; ++i) common.push_back({Below(kSets), "n" + std::to_string(Below(4)), Below(4) != 0});
    for (int rank = 0; rank < kRanks; ++rank) {
      std::vector<Call> program = common;
      if (Below(3) == 0) std::swap(program[Below(6)], program[Below(6)]);
      if (Below(6) == 0) program.erase(program.begin() + static_cast<std::ptrdiff_t>(Below(6)));
      for (const Call& call : program) {
        if (MemberOf(call.set, rank) >= 0) ranks_[rank].program.push_back(call);
      }
    }
  }

  // Run until no rank can move any more, or until `look` finds a certain deadlock. Return the ranks of that deadlock.
  std::vector<int> Run(bool look) {
    for (int step = 0; step < kSteps; ++step) {
      Step();
      if (!look) continue;
      for (int rank = 0; rank < kRanks; ++rank) {
        if (waits(rank) && Below(32) == 0) Report(rank);
      }
      if (!std::exchange(heard_, false)) continue;
      for (const Deadlock& found : deadlocks_.Find(WatchTime())) {
        if (!found.certain) continue;
        std::vector<int> stuck;
        for (const Deadlock::Stuck& one : found.ranks) stuck.push_back(one.rank);
        return stuck;
      }
    }
    return {};
  }

  bool waits(int rank) const { return ranks_[rank].waits_in >= 0; }
  size_t done(int rank) const { return ranks_[rank].next; }
  bool finished(int rank) const { return !waits(rank) && ranks_[rank].next == ranks_[rank].program.size(); }
  bool all_present() const {
    for (int rank = 0; rank < kRanks; ++rank) {
      if (finished(rank)) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kSets = 3;
  struct Rank {
    std::vector<Call> program;
    size_t next = 0;
    int waits_in = -1;  // the process set in which the rank waits
    std::string waits_for;
    std::set<std::pair<size_t, std::string>> in_flight;
    uint64_t announced[kSets] = {};
  };
  struct Leader {
    std::vector<int> ranks;
    std::unique_ptr<Coordinator> coordinator;
  };

  size_t Below(size_t end) { return random_() % end; }
  int MemberOf(size_t set, int rank) const {
    const auto& ranks = leaders_[set].ranks;
    const auto found = std::find(ranks.begin(), ranks.end(), rank);
    return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
  }
  std::deque<std::function<void()>>& Up(size_t set, int rank) { return queues_[set * kRanks + size_t(rank)]; }
  std::deque<std::function<void()>>& Down(size_t set, int rank) {
    return queues_[(kSets + set) * kRanks + size_t(rank)];
  }

  void Step() {
    const size_t what = Below(queues_.size() + kRanks);
    if (what >= queues_.size()) return Advance(static_cast<int>(what - queues_.size()));
    if (queues_[what].empty()) return;
    const auto message = std::move(queues_[what].front());
    queues_[what].pop_front();
    message();
  }

  void Advance(int number) {
    Rank& rank = ranks_[number];
    if (rank.waits_in >= 0 || rank.next == rank.program.size()) return;
    const Call& call = rank.program[rank.next];
    // An operation of this name is in flight, so the rank waits for it first.
    if (rank.in_flight.count({call.set, call.name})) {
      rank.waits_in = static_cast<int>(call.set);
      rank.waits_for = call.name;
      return;
    }
    ++rank.next;
    ++rank.announced[call.set];
    rank.in_flight.insert({call.set, call.name});
    Up(call.set, number).push_back([this, number, call] {
      leaders_[call.set].coordinator->OnRequest(MemberOf(call.set, number), testing::Allreduce(call.name));
      Decide(call.set);
    });
    if (call.waits) {
      rank.waits_in = static_cast<int>(call.set);
      rank.waits_for = call.name;
    }
  }

  void Decide(size_t set) {
    for (const Record& record : leaders_[set].coordinator->Decide()) {
      for (const Entry& entry : record.entries) {
        for (int rank : leaders_[set].ranks) {
          Down(set, rank).push_back([this, set, rank, name = entry.request.name] { Done(set, rank, name); });
        }
      }
    }
  }

  void Done(size_t set, int number, const std::string& name) {
    Rank& rank = ranks_[number];
    rank.in_flight.erase({set, name});
    if (rank.waits_in == static_cast<int>(set) && rank.waits_for == name) rank.waits_in = -1;
  }

  void Report(int number) {
    const Rank& rank = ranks_[number];
    Block block;
    block.rank = number;
    block.number = ++reports_;
    block.alone = true;
    block.set = rank.waits_in;
    block.name = rank.waits_for;
    for (size_t set = 0; set < kSets; ++set) {
      if (MemberOf(set, number) >= 0) block.announced.push_back({static_cast<int32_t>(set), 0, rank.announced[set]});
    }
    const size_t set = static_cast<size_t>(rank.waits_in);
    const uint64_t count = rank.announced[set];
    Up(set, number).push_back([this, number, set, count, block]() mutable {
      const Coordinator& coordinator = *leaders_[set].coordinator;
      const int member = MemberOf(set, number);
      if (coordinator.Heard(member) != count) return;
      for (int missing : coordinator.MissingFor(member, block.name, "")) {
        block.missing.push_back({leaders_[set].ranks[size_t(missing)], coordinator.Heard(missing)});
      }
      if (block.missing.empty()) return;
      queues_[kRanks * kSets * 2 + size_t(leaders_[set].ranks[0])].push_back([this, block] {
        deadlocks_.Hear(block);
        heard_ = true;
      });
    });
  }

  std::mt19937 random_;
  Rank ranks_[kRanks];
  std::vector<Leader> leaders_;
  std::vector<std::deque<std::function<void()>>> queues_;
  Deadlocks deadlocks_{WatchSpan::zero(), std::chrono::hours(1)};
  uint64_t reports_ = 0;
  bool heard_ = false;
};

}  // namespace

TEST_CASE("deadlocks: random programs are never found stuck while they are not, and always if they are") {
  int found = 0, went_well = 0;
  for (unsigned seed = 0; seed < Repeats(600); ++seed) {
    Simulation simulation(seed);
    const std::vector<int> stuck = simulation.Run(true);
    std::vector<size_t> before;
    for (int rank : stuck) before.push_back(simulation.done(rank));
    simulation.Run(false);
    for (size_t i = 0; i < stuck.size(); ++i) {
      CHECK_MESSAGE(simulation.waits(stuck[i]), "seed " << seed);
      CHECK_MESSAGE(simulation.done(stuck[i]) == before[i], "seed " << seed);
    }
    found += !stuck.empty();
    bool all_done = true;
    for (int rank = 0; rank < Simulation::kRanks; ++rank) all_done &= simulation.finished(rank);
    went_well += all_done;
    // If all ranks still want something and none makes progress, they wait for each other, so a report is due.
    if (stuck.empty()) CHECK_MESSAGE(!simulation.all_present(), "seed " << seed);
  }
  CHECK(found > 0);
  CHECK(went_well > 0);
}

}  // namespace hvd
