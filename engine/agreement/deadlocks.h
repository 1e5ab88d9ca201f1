// SPDX-License-Identifier: Apache-2.0
// Detection of ranks that wait for each other. The input is which threads of which ranks do nothing but wait, and for
// which ranks; the output is the ranks that are stuck. Pure: no clock of its own, thread, socket or shared memory, so
// that every rule has a table test.
//
// A rank waits for the members that have not submitted the operation it waits for. The stuck ranks are the largest set
// of waiting ranks in which each waits for another rank of the set. A deadlock is certain, and fails the ranks, only
// if a single thread of each rank calls the engine, because no other thread could submit what is missing. Threads that
// have never called get some time to do so; after that the ranks fail too.
//
// Reports need not be from one moment. A waiting rank reports how many operations it has announced in each of its
// sets, and a set's leader reports how many it had received from each missing member. If these numbers agree, a
// missing member cannot announce the operation before its own wait is over, and this holds for each rank of the
// circle.
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

// Number of operations that a rank has announced in one of its sets.
struct Announced {
  int32_t set = 0;
  uint32_t epoch = 0;
  uint64_t count = 0;
};

// A thread of a rank that does nothing but wait for one operation or one group.
struct Block {
  // Member that has not submitted the operation, with the number of its reports that the set's leader had counted.
  struct Missing {
    int64_t rank = 0;
    uint64_t heard = 0;
  };

  int32_t rank = 0;
  uint64_t thread = 0;           // number that identifies the thread within its rank
  uint64_t number = 0;           // increases with each report of the rank; only the latest report is valid
  bool over = false;             // true: the wait is over, and the fields below are empty
  bool alone = false;            // true: no other thread of the rank submits operations
  bool others_are_idle = false;  // true: other threads could submit operations, but none has ever called the engine
  int32_t set = 0;               // the process set in which it waits
  uint32_t epoch = 0;
  std::string name, group;
  std::string what;                  // for example "allreduce 'x' (train.py:12)"
  std::string others;                // names of the other threads, if they are idle
  std::vector<Announced> announced;  // number of announced operations in all sets of the rank
  std::vector<Missing> missing;      // filled in by the set's leader
};

void Encode(const Block& block, std::string* out);
bool Decode(std::string_view* in, Block* block);

// A deadlock as the global leader sends it to all ranks.
struct Deadlock {
  struct Stuck {
    int32_t rank = 0;
    std::vector<Announced> announced;
  };

  bool certain = false;      // false: another thread may still end the wait
  std::string text;          // the error, or the warning
  std::vector<Stuck> ranks;  // the stuck ranks in ascending order
};

void Encode(const Deadlock& deadlock, std::string* out);
bool Decode(std::string_view* in, Deadlock* deadlock);

class Deadlocks {
 public:
  // `settling`: time for which a deadlock must last before it is reported, so that ranks that join it a little later
  // are named too. `patience`: time after which threads that have never called are not expected to call any more.
  Deadlocks(WatchSpan settling, WatchSpan patience) : settling_(settling), patience_(patience) {}

  void Hear(Block block);
  void Forget(int rank);  // call when the rank has left; operations that wait for it fail anyway
  bool empty() const { return blocks_.empty(); }
  // Return what to report now: first errors, each once; then warnings, each text once.
  std::vector<Deadlock> Find(WatchTime now);

 private:
  using Blocks = std::map<uint64_t, Block>;  // reported waits by thread
  using Ranks = std::set<int>;
  // Threads of a rank that could still end its wait.
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
  std::map<int, Blocks> blocks_;     // reported waits by rank
  std::map<int, uint64_t> numbers_;  // number of the latest report of each rank
  WatchTime certain_since_{}, idle_since_{}, seems_since_{};
  std::string idle_;  // names the ranks that have waited since `idle_since_`, and what they wait for
  std::set<std::string> warnings_;
};

}  // namespace hvd
