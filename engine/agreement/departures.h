// SPDX-License-Identifier: Apache-2.0
// Who leaves, who is lost, and when the world is over. Told of every sign of it, answers with what to do. Pure: no
// clock, socket or shared memory, so that every rule has a table test.
//
// A rank is in one of four states:
//   present      its end would be a loss, which ends the world for everybody
//   leaving      its farewell came over the life line: the end will be meant, but words of it may still be unread
//   departed     its bye came, behind all else that it had to say
//   unexplained  no more will come from a rank that was leaving, and its bye is not among what came. Counts as
//   departed,
//                and as the end of what was running with it
// The world is over for us when anybody is lost, when something is beyond repair, or when we have left it.
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
  // How long a broken lane is not judged: whoever holds the control link of the other end knows more.
  static constexpr std::chrono::milliseconds kGrace{1000};

  struct Verdict {
    enum class What {
      kNothing,
      kPart,    // `rank` has departed: everything that needs it fails
      kAbort,   // the world is over: everybody is told `text`, and that `rank` (-1: nobody in particular) is to blame
      kSayBye,  // this rank may leave in peace
    };
    What what = What::kNothing;
    int rank = -1;
    std::string text;
  };

  // `hosts`: their names, by rank. `patience`: how long a rank may be silent (zero: for ever).
  Departures(int me, std::vector<std::string> hosts, WatchSpan patience);

  // Why the world is over; ok while it is not.
  const Status& over() const { return over_; }
  // False if it was over before, and stays over for that reason.
  bool End(const Status& why);

  bool departed(int rank) const { return StateOf(rank) >= State::kDeparted; }
  bool meant_to_leave(int rank) const { return StateOf(rank) != State::kPresent; }
  // Whether one of these ranks has left, or is on its way.
  bool LeavingAmong(const std::vector<int>& ranks) const;
  // The last of these ranks that went unexplained, and how we noticed; {-1, ""} if none did.
  std::pair<int, std::string> UnexplainedAmong(const std::vector<int>& ranks) const;

  // ---- what is heard of another rank
  void OnFarewell(int rank);
  Verdict OnBye(int rank);
  // Its life line ended. `in_memory`: its messages are in shared memory and have all been read. Else they come over a
  // link, whose end will tell that.
  Verdict OnEnded(int rank, bool in_memory, WatchTime now);
  // No more will come from it.
  Verdict OnBroken(int rank, const std::string& why, WatchTime now);
  // It never came, and nobody listens there any more.
  Verdict OnDeserted(int rank, WatchTime now) const;
  // What is running needs it, and the way to it is broken. Judged only after a while (see kGrace).
  Verdict OnNeeded(int rank, const std::string& why, WatchTime now);
  void OnNothingBroken() { broken_since_ = WatchTime(); }
  bool awaits_word() const { return broken_since_ != WatchTime(); }  // of why something broke
  // For a set's leader: a member left after record `applied` of the log. If a batch came later, it has begun here and
  // will never end.
  Verdict OnMemberGone(int rank, uint64_t applied, uint64_t last_batch) const;
  Verdict Lose(int rank, const std::string& why) const;

  // ---- the watch
  void Expect(int rank, WatchTime since);
  void Heard(int rank, WatchTime when) { heartbeats_.Heard(rank, when); }
  Verdict Look(WatchTime now);  // who has been silent for too long?
  WatchTime NextLook(WatchTime now) const { return heartbeats_.NextLook(now); }

  // ---- this rank
  // `busy`: something was agreed upon and is not finished.
  Verdict Leave(bool busy) const;

  // What fails because this rank has departed fails with this. `call`: what this rank still wanted of it (see
  // SpokenCall).
  Status ShutDown(int rank) const;
  Status ShutDown(int rank, const std::string& call) const;

  // ---- in one process set
  enum class InSet {
    kNothing,
    kCount,     // the leader's: its coordinator counts the member out
    kClose,     // the way to the leader is gone
    kPassOn,    // the parent in the tree hears of it
    kFarewell,  // it has left in peace, whatever becomes of our link to it
  };
  // `member` has departed, seen by the one whose place in the tree this is.
  static InSet WhenDeparted(const Tree& tree, int member);
  // The same, told by the member `by`. A member that we do not know (-1) may be known further up. A leader of few
  // members tells them who has left; any other parent speaks of those above it, when its own way to the leader is gone.
  static InSet WhenTold(const Tree& tree, int member, int by);

 private:
  enum class State : uint8_t { kPresent, kLeaving, kDeparted, kUnexplained };

  State StateOf(int rank) const { return states_[static_cast<size_t>(rank)]; }
  void Enter(int rank, State state);
  Verdict LoseContact(int rank, const std::string& why, WatchTime now) const;
  std::string LeftInTheMiddle(int rank) const;

  const int me_;
  const std::vector<std::string> hosts_;
  std::vector<State> states_;               // by rank
  std::map<int, std::string> unexplained_;  // how we noticed
  Heartbeats heartbeats_;
  WatchTime broken_since_{};
  Status over_;
};

}  // namespace hvd
