// SPDX-License-Identifier: Apache-2.0
// NCCL waits for ever if two ranks launch operations of two communicators in different orders. So there is one order
// for all: the log of the global set. Batches of the global set on GPUs take their turns where they stand in it; for a
// batch of any other set its leader wants a turn when the batch is about to run, which the global leader publishes
// there. Each rank knows the turns of its own sets, and launches in their order. Whoever has the first turn of all can
// launch: what stands before it in its set's log waits for no later turn. A batch that is launched piece by piece, as
// peers come to it, has its turn alone: no piece of it may come behind a batch whose turn is later. Pure; used by the
// driver alone.
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
  // In the order of the global log: the turn of a set that this rank belongs to.
  void Add(const Turn& turn) { turns_.push_back(turn); }
  // Whether it is the first, and may begin; then it is taken. `alone`: once all that was taken before is launched; and
  // nothing else is taken until it is launched itself.
  bool Take(const Turn& turn, bool alone = false) {
    if (turns_.empty() || !(turns_.front() == turn) || alone_ || (alone && !taken_.empty())) return false;
    turns_.pop_front();
    taken_.push_back(turn);
    alone_ = alone;
    return true;
  }
  // All of it is.
  void Launched(const Turn& turn) {
    taken_.erase(std::remove(taken_.begin(), taken_.end(), turn), taken_.end());
    alone_ = alone_ && !taken_.empty();
  }
  // Nobody publishes turns any more, because of `why`.
  void Close(std::string why) { closed_ = std::move(why); }
  const std::string& closed() const { return closed_; }
  // Whether it may still be taken.
  bool MayCome(const Turn& turn) const {
    return closed_.empty() || std::find(turns_.begin(), turns_.end(), turn) != turns_.end();
  }
  // It is not needed after all.
  void Drop(const Turn& turn) { turns_.erase(std::remove(turns_.begin(), turns_.end(), turn), turns_.end()); }
  // The set is gone.
  void Forget(int set) {
    const auto of_set = [set](const Turn& turn) { return turn.set == set; };
    turns_.erase(std::remove_if(turns_.begin(), turns_.end(), of_set), turns_.end());
    wanted_.erase(std::remove_if(wanted_.begin(), wanted_.end(), of_set), wanted_.end());
    taken_.erase(std::remove_if(taken_.begin(), taken_.end(), of_set), taken_.end());
    alone_ = alone_ && !taken_.empty();
  }

  // For the leader of a set: the global leader is to be asked for it.
  void Want(const Turn& turn) { wanted_.push_back(turn); }
  bool wants() const { return !wanted_.empty(); }
  std::vector<Turn> TakeWanted() { return std::exchange(wanted_, {}); }

 private:
  std::deque<Turn> turns_;
  std::vector<Turn> wanted_, taken_;
  bool alone_ = false;  // what is taken
  std::string closed_;
};

}  // namespace hvd
