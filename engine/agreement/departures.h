// SPDX-License-Identifier: Apache-2.0
// Decides which ranks have left, which are lost, and when the world ends. It receives every sign of these and returns
// what to do. Pure: no clock, socket or shared memory, so that every rule has a table test.
//
// A rank is in one of four states:
//    present      its end would be a loss, which ends the world for all ranks
//    leaving      its leave notice came over the liveness socket: the end is intended, but messages may still be unread
//    departed     its kBye message came, which follows all its other messages
//    unexplained  it was leaving, no more messages will come, and kBye was not among them. It counts as departed, and
//                 operations that were running with it cannot finish
// For this rank, the world ends when any rank is lost, when a failure cannot be repaired, or when this rank has left
// it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "agreement/tree.h"
#include "base/heartbeats.h"
#include "base/types.h"

namespace hvd {

class Departures {
 public:
  // Time for which a broken lane is not judged, because the rank that holds the control link to the other end may send
  // the reason.
  static constexpr std::chrono::milliseconds kGrace{1000};

  struct Verdict {
    enum class What {
      kNothing,
      kPart,    // `rank` has departed: everything that needs it fails
      kAbort,   // the world ends: all ranks receive `text` and the rank that caused it (-1: no single rank)
      kSayBye,  // this rank may leave normally
    };
    What what = What::kNothing;
    int rank = -1;
    std::string text;
  };

  // `hosts`: host names by rank. `patience`: how long a rank may be silent (zero: indefinitely).
  Departures(int me, std::vector<std::string> hosts, WatchSpan patience);

  // Return why the world has ended; ok while it has not ended.
  const Status& over() const { return over_; }
  // End the world. Return false if it had ended before; the first reason stays.
  bool End(const Status& why);

  bool departed(int rank) const { return StateOf(rank) >= State::kDeparted; }
  bool meant_to_leave(int rank) const { return StateOf(rank) != State::kPresent; }
  // Return true if one of these ranks has left or is leaving.
  bool LeavingAmong(const std::vector<int>& ranks) const;
  // Return the highest of these ranks that left unexplained and how this rank noticed, or {-1, ""} if there is none.
  std::pair<int, std::string> UnexplainedAmong(const std::vector<int>& ranks) const;

  // ---- signs of other ranks
  void OnFarewell(int rank);
  Verdict OnBye(int rank);
  // Handle the end of a rank's liveness socket. `in_memory`: its messages are in shared memory and have all been read.
  // Otherwise they come over a link, and the end of the link is the sign to use.
  Verdict OnEnded(int rank, bool in_memory, WatchTime now);
  // Handle that no more messages will come from a rank.
  Verdict OnBroken(int rank, const std::string& why, WatchTime now);
  // Handle a rank that never connected and whose listener is gone.
  Verdict OnDeserted(int rank, WatchTime now) const;
  // Handle a broken connection to a rank that a running operation needs. The rank is judged only after kGrace.
  Verdict OnNeeded(int rank, const std::string& why, WatchTime now);
  void OnNothingBroken() { broken_since_ = WatchTime(); }
  // Return true while a message with the reason for a broken connection may still arrive.
  bool awaits_word() const { return broken_since_ != WatchTime(); }
  // Handle a member that left after it had applied record `applied` of the log. If a batch came later, that batch has
  // started here and will never finish. For the leader of a set only.
  Verdict OnMemberGone(int rank, uint64_t applied, uint64_t last_batch) const;
  Verdict Lose(int rank, const std::string& why) const;
  // Return what to do about an error of the engine. It ends the world, because of its lost rank if it has one.
  Verdict Judge(const Status& trouble) const;

  // ---- heartbeats
  void Expect(int rank, WatchTime since);
  void Heard(int rank, WatchTime when) { heartbeats_.Heard(rank, when); }
  Verdict Look(WatchTime now);  // checks for a rank that has been silent for too long
  WatchTime NextLook(WatchTime now) const { return heartbeats_.NextLook(now); }

  // ---- this rank

  // Decide how this rank leaves. `busy`: agreed operations are not finished.
  Verdict Leave(bool busy) const;

  // Return the error of operations that fail because a rank has departed. `call`: what this rank still wanted from it
  // (see SpokenCall).
  Status ShutDown(int rank) const;
  Status ShutDown(int rank, const std::string& call) const;

  // ---- in one process set
  enum class InSet {
    kNothing,
    kCount,     // at the leader: the coordinator removes the member
    kClose,     // the connection to the leader is gone
    kPassOn,    // report the departure to the parent in the tree
    kFarewell,  // it has left normally, even if the link to it breaks
  };
  // Return what to do when `member` has departed, on the member with this tree.
  static InSet WhenDeparted(const Tree& tree, int member);
  // Return what to do when the member `by` reports that `member` has departed. A member that is unknown here (-1) may
  // be known further up the tree. The leader of a small set sends its members the ranks that have left; any other
  // parent reports only ranks above it, when its own connection to the leader is gone.
  static InSet WhenTold(const Tree& tree, int member, int by);

 private:
  enum class State : uint8_t { kPresent, kLeaving, kDeparted, kUnexplained };

  State StateOf(int rank) const { return states_[static_cast<size_t>(rank)]; }
  void Enter(int rank, State state);
  Verdict LoseContact(int rank, const std::string& why, WatchTime now) const;
  std::string LeftInTheMiddle(int rank) const;

  const int me_;
  const std::vector<std::string> hosts_;
  std::vector<State> states_;               // state of each rank
  std::map<int, std::string> unexplained_;  // how this rank noticed, by rank
  Heartbeats heartbeats_;
  WatchTime broken_since_{};
  Status over_;
};

}  // namespace hvd
