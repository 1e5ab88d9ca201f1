// SPDX-License-Identifier: Apache-2.0
// Order of NCCL launches. NCCL waits indefinitely if two ranks launch operations of two communicators in different
// orders, so the log of the global set defines one order for all. Batches of the global set on GPUs have their launch
// slots where they stand in it. For a batch of another set, its leader requests a slot when the batch is about to run,
// and the global leader publishes the slot in the log. Each rank knows the slots of its own sets and launches in their
// order. The batch with the first slot can always launch, because what precedes it in its set's log does not wait for a
// later slot. A batch that is launched in several pieces, as peers reach it, has its slot exclusively, so that no piece
// comes after a batch with a later slot. Pure; only the thread that drives the engine uses it.
#pragma once

#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "agreement/message.h"

namespace hvd {

class LaunchOrder {
 public:
  // Append the launch slot of a set that this rank belongs to. Call in the order of the global log.
  void Add(const Turn& turn) { turns_.push_back(turn); }
  // Take the slot and return true if it is the first one. `alone`: only once everything taken before is launched;
  // nothing else can be taken until this one is launched too.
  bool Take(const Turn& turn, bool alone = false) {
    if (turns_.empty() || !(turns_.front() == turn) || alone_ || (alone && !taken_.empty())) return false;
    turns_.pop_front();
    taken_.push_back(turn);
    alone_ = alone;
    return true;
  }
  // Note that every piece of this batch has been launched.
  void Launched(const Turn& turn) {
    taken_.erase(std::remove(taken_.begin(), taken_.end(), turn), taken_.end());
    alone_ = alone_ && !taken_.empty();
  }
  // Note that no more slots will be published, because of `why`.
  void Close(std::string why) { closed_ = std::move(why); }
  const std::string& closed() const { return closed_; }
  // Return true if the slot may still be taken, now or later.
  bool MayCome(const Turn& turn) const {
    return closed_.empty() || std::find(turns_.begin(), turns_.end(), turn) != turns_.end();
  }
  // Remove a slot that is not needed.
  void Drop(const Turn& turn) { turns_.erase(std::remove(turns_.begin(), turns_.end(), turn), turns_.end()); }
  // Remove everything of a set that no longer exists.
  void Forget(int set) {
    const auto of_set = [set](const Turn& turn) { return turn.set == set; };
    turns_.erase(std::remove_if(turns_.begin(), turns_.end(), of_set), turns_.end());
    wanted_.erase(std::remove_if(wanted_.begin(), wanted_.end(), of_set), wanted_.end());
    taken_.erase(std::remove_if(taken_.begin(), taken_.end(), of_set), taken_.end());
    alone_ = alone_ && !taken_.empty();
  }

  // Queue a request to the global leader for a slot. For the leader of a set only.
  void Want(const Turn& turn) { wanted_.push_back(turn); }
  bool wants() const { return !wanted_.empty(); }
  std::vector<Turn> TakeWanted() { return std::exchange(wanted_, {}); }

 private:
  std::deque<Turn> turns_;
  std::vector<Turn> wanted_, taken_;
  bool alone_ = false;  // true while the taken batch excludes all others
  std::string closed_;
};

}  // namespace hvd
