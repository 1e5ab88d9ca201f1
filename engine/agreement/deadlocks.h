// SPDX-License-Identifier: Apache-2.0
// Ranks that wait for each other for ever. Told which threads of which ranks do nothing but wait, and for whom; answers
// who is stuck. Pure: no clock of its own, thread, socket or shared memory, so that every rule has a table test.
//
// A rank waits for the members that have not submitted what it waits for. It is stuck if one of those is stuck: all
// that are, are the largest set of waiting ranks in which each waits for another of the set. That is certain, and fails
// them, only among ranks of which a single thread calls, for nothing but that thread could submit what is missing.
// Other threads that have never called are given time to begin with it; then the ranks fail, too.
//
// What is heard need not be of one moment. A rank tells how many operations it has announced in each of its sets while
// it waits, and a set's leader how many it had heard from a member that it missed: if these agree, the member cannot
// announce what is missing before its own wait is over, and so on around the circle.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/heartbeats.h"

namespace hvd {

// How many operations a rank has announced in one of its sets.
struct Announced {
  int32_t set = 0;
  uint32_t epoch = 0;
  uint64_t count = 0;
};

// One thread of a rank that does nothing but wait for one operation, or for one group of them.
struct Block {
  // A member that has not submitted it, and how many operations the set's leader had heard of from that member.
  struct Missing {
    int64_t rank = 0;
    uint64_t heard = 0;
  };

  int32_t rank = 0;
  uint64_t thread = 0;           // any number that tells it from others of the rank
  uint64_t number = 0;           // of the rank's reports: the latest counts
  bool over = false;             // it waits no longer, and there is nothing below
  bool alone = false;            // no other thread of the rank submits anything
  bool others_are_idle = false;  // other threads could, but none of them has ever called
  int32_t set = 0;               // in which it waits
  uint32_t epoch = 0;
  std::string name, group;
  std::string what;                  // "allreduce 'x' (train.py:12)"
  std::string others;                // names of the threads that could call, if they are idle
  std::vector<Announced> announced;  // in all sets of the rank
  std::vector<Missing> missing;      // the set's leader fills it in
};

void Encode(const Block& block, std::string* out);
bool Decode(std::string_view* in, Block* block);

// What all ranks are told.
struct Deadlock {
  struct Stuck {
    int32_t rank = 0;
    std::vector<Announced> announced;
  };

  bool certain = false;      // else there may be a thread that goes on
  std::string text;          // the error, or the warning
  std::vector<Stuck> ranks;  // ascending
};

void Encode(const Deadlock& deadlock, std::string* out);
bool Decode(std::string_view* in, Deadlock* deadlock);

class Deadlocks {
 public:
  // A deadlock is told of when it has been seen for `settling`: those who come to it a little later are named, too.
  // After `patience`, threads that have never called are not expected to call any more.
  Deadlocks(WatchSpan settling, WatchSpan patience) : settling_(settling), patience_(patience) {}

  void Hear(Block block);
  void Forget(int rank);  // it has left: what waited for it fails anyway
  bool empty() const { return blocks_.empty(); }
  // What is to be told now: first errors, each once; then warnings, each text once.
  std::vector<Deadlock> Find(WatchTime now);

 private:
  using Blocks = std::map<uint64_t, Block>;  // by thread
  using Ranks = std::set<int>;
  // Which threads of a rank could still end its wait.
  enum class Rescuers { kNone, kIdle, kAny };

  static Rescuers RescuersOf(const Blocks& blocks);
  bool WaitsFor(const Block& block, const Ranks& others, Rescuers allowed) const;
  Ranks Stuck(Rescuers allowed) const;
  bool HasSettled(const Ranks& ranks, WatchTime* since, WatchTime now) const;
  bool HasLasted(const Ranks& ranks, WatchTime now);
  std::string Identify(const Ranks& ranks) const;
  std::string Listed(const Ranks& ranks) const;
  std::string ListIdleThreads(const Ranks& ranks) const;
  void Forget(const Ranks& ranks);
  Deadlock Told(const Ranks& ranks, bool certain, std::string text) const;

  const WatchSpan settling_, patience_;
  std::map<int, Blocks> blocks_;     // by rank
  std::map<int, uint64_t> numbers_;  // the latest report of each rank
  WatchTime certain_since_{}, idle_since_{}, seems_since_{};
  std::string idle_;  // which ranks have waited since `idle_since_`, and for what
  std::set<std::string> warnings_;
};

}  // namespace hvd
