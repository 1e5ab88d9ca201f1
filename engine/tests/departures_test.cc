// SPDX-License-Identifier: Apache-2.0
// Every way in which a rank can leave or be lost, and how the other ranks react.
#include "agreement/departures.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace hvd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const WatchTime kStart = WatchTime() + std::chrono::hours(1);

Departures FourRanks() { return Departures(0, {"a", "a", "b", "b"}, seconds(10)); }

// Return a decision as text: "", "part 2", "abort 2: why", "bye".
std::string Words(const Departures::Verdict& verdict) {
  using What = Departures::Verdict::What;
  switch (verdict.what) {
    case What::kNothing:
      return "";
    case What::kPart:
      return "part " + std::to_string(verdict.rank);
    case What::kAbort:
      return "abort " + std::to_string(verdict.rank) + ": " + verdict.text;
    default:
      return "bye";
  }
}

// Report an event of rank 2, and return the decision as text. "ended" is the end of its liveness socket when its
// messages come through shared memory, "ended without memory" when they come over a link.
std::string Tell(Departures* departures, const std::string& event, WatchTime now = kStart) {
  if (event == "farewell") {
    departures->OnFarewell(2);
    return "";
  }
  if (event == "bye") return Words(departures->OnBye(2));
  if (event == "ended") return Words(departures->OnEnded(2, true, now));
  if (event == "ended without memory") return Words(departures->OnEnded(2, false, now));
  if (event == "broken") return Words(departures->OnBroken(2, "reset by peer", now));
  REQUIRE(event == "deserted");
  return Words(departures->OnDeserted(2, now));
}

const char* const kEnded = "abort 2: rank 2 is lost (on host 'b'): its process ended";
const char* const kBroken = "abort 2: rank 2 is lost (on host 'b'): reset by peer";
const char* const kDeserted =
    "abort 2: rank 2 is lost (on host 'b'): its process ended before it had connected, says rank 0";

TEST_CASE("departures: what is heard of a rank, and what follows from the last of it") {
  struct Row {
    std::vector<std::string> events;
    const char* verdict;
    bool departed, unexplained;
  };
  const std::vector<Row> rows = {
      {{"ended"}, kEnded, false, false},
      {{"ended without memory"}, kEnded, false, false},
      {{"broken"}, kBroken, false, false},
      {{"deserted"}, kDeserted, false, false},
      {{"bye"}, "part 2", true, false},
      {{"farewell"}, "", false, false},
      {{"farewell", "bye"}, "part 2", true, false},
      {{"farewell", "deserted"}, "", false, false},
      {{"bye", "deserted"}, "", true, false},
      // After a goodbye, the end of the rank changes nothing.
      {{"bye", "bye"}, "", true, false},
      {{"bye", "farewell"}, "", true, false},
      {{"bye", "ended"}, "", true, false},
      {{"bye", "ended without memory"}, "", true, false},
      {{"bye", "broken"}, "", true, false},
      {{"farewell", "bye", "ended"}, "", true, false},
      // The rank had announced that it leaves, but its goodbye was lost.
      {{"farewell", "ended"}, "part 2", true, true},
      {{"farewell", "broken"}, "part 2", true, true},
      {{"farewell", "ended without memory"}, "", false, false},
      {{"farewell", "ended without memory", "bye"}, "part 2", true, false},
      {{"farewell", "ended without memory", "broken"}, "part 2", true, true},
      {{"farewell", "ended", "broken"}, "", true, true},
      {{"farewell", "ended", "bye"}, "", true, true},
  };
  for (const Row& row : rows) {
    std::string story;
    for (const std::string& event : row.events) story += event + ", ";
    CAPTURE(story);
    Departures departures = FourRanks();
    for (size_t i = 0; i + 1 < row.events.size(); ++i) Tell(&departures, row.events[i]);
    CHECK(Tell(&departures, row.events.back()) == row.verdict);
    CHECK(departures.departed(2) == row.departed);
    CHECK(departures.UnexplainedAmong({1, 2, 3}).first == (row.unexplained ? 2 : -1));
    CHECK(departures.UnexplainedAmong({0, 1, 3}).first == -1);
    for (int other : {0, 1, 3}) CHECK_FALSE(departures.meant_to_leave(other));
  }
}

TEST_CASE("departures: a rank counts as leaving from its farewell on, and only among those it belongs to") {
  for (const char* event : {"farewell", "bye"}) {
    Departures departures = FourRanks();
    CHECK_FALSE(departures.LeavingAmong({0, 1, 2, 3}));
    Tell(&departures, event);
    CHECK(departures.LeavingAmong({0, 2}));
    CHECK_FALSE(departures.LeavingAmong({0, 1, 3}));
  }
}

TEST_CASE("departures: the world ends once, for the first reason") {
  Departures departures = FourRanks();
  CHECK(departures.over().ok());
  CHECK(departures.End(Status::Failed("first", 3)));
  CHECK_FALSE(departures.End(Status::Failed("second", 1)));
  CHECK(departures.over().text == "first");
  CHECK(departures.over().lost_rank == 3);
  CHECK(Tell(&departures, "ended") == "");
  CHECK(Tell(&departures, "bye") == "part 2");  // it is still removed from its sets
}

TEST_CASE("departures: of several that went unexplained the last is named, with how that was noticed") {
  Departures departures = FourRanks();
  for (int rank : {1, 3}) {
    departures.OnFarewell(rank);
    departures.OnBroken(rank, "by " + std::to_string(rank), kStart);
  }
  CHECK(departures.UnexplainedAmong({0, 1, 2, 3}) == std::make_pair(3, std::string("by 3")));
  CHECK(departures.UnexplainedAmong({0, 1, 2}) == std::make_pair(1, std::string("by 1")));
}

TEST_CASE("departures: a broken lane is judged when those who know more have had time to speak") {
  Departures departures = FourRanks();
  CHECK_FALSE(departures.awaits_word());
  CHECK(Words(departures.OnNeeded(2, "reset", kStart)) == "");
  CHECK(departures.awaits_word());
  CHECK(Words(departures.OnNeeded(2, "reset", kStart + milliseconds(999))) == "");
  CHECK(Words(departures.OnNeeded(2, "reset", kStart + Departures::kGrace)) ==
        "abort 2: rank 2 is lost (on host 'b'): the connection to it broke (reset), says rank 0");
}

TEST_CASE("departures: a lane that is no longer needed takes its grace with it") {
  Departures departures = FourRanks();
  departures.OnNeeded(2, "reset", kStart);
  departures.OnNothingBroken();
  CHECK_FALSE(departures.awaits_word());
  CHECK(Words(departures.OnNeeded(2, "reset", kStart + seconds(2))) == "");
}

TEST_CASE("departures: silence is a loss, but not of those who meant to go") {
  Departures departures = FourRanks();
  for (int rank : {1, 2, 3}) departures.Expect(rank, kStart);
  departures.OnFarewell(1);
  departures.OnBye(2);
  for (int rank : {1, 2}) departures.Expect(rank, kStart);  // the engine calls this each time it looks at the links
  WatchTime now = kStart;
  for (; now < kStart + seconds(10); now += milliseconds(500)) CHECK(Words(departures.Look(now)) == "");
  const Departures::Verdict verdict = departures.Look(now);
  CHECK(verdict.what == Departures::Verdict::What::kAbort);
  CHECK(verdict.rank == 3);
  CHECK(verdict.text.find("no sign of life for 10 s") != std::string::npos);
  CHECK(verdict.text.find(", says rank 0") != std::string::npos);
}

TEST_CASE("departures: whoever was away himself blames nobody else, whatever he finds") {
  for (const char* event : {"ended", "broken", "deserted", "needed", "farewell, ended"}) {
    CAPTURE(event);
    Departures departures = FourRanks();
    departures.Look(kStart);
    const WatchTime now = kStart + seconds(60);  // this rank was stopped for a minute
    Departures::Verdict verdict;
    if (event == std::string("needed")) {
      departures.OnNeeded(2, "reset", now - Departures::kGrace);
      verdict = departures.OnNeeded(2, "reset", now);
    } else if (event == std::string("deserted")) {
      verdict = departures.OnDeserted(2, now);
    } else {
      if (event == std::string("farewell, ended")) departures.OnFarewell(2);
      verdict = departures.OnBroken(2, "x", now);
    }
    CHECK(verdict.what == Departures::Verdict::What::kAbort);
    CHECK(verdict.rank == 0);
    CHECK(verdict.text.find("it gave no sign of life for 60 s") != std::string::npos);
  }
}

TEST_CASE("departures: leaving is announced, unless something is under way or over") {
  const std::string in_the_middle =
      "abort 0: Horovod has been shut down: rank 0 (on host 'a') called shutdown or exited in the middle of a "
      "collective";
  Departures departures = FourRanks();
  CHECK(Words(departures.Leave(false)) == "bye");
  CHECK(Words(departures.Leave(true)) == in_the_middle);
  departures.End(Status::Failed("lost"));
  CHECK(Words(departures.Leave(false)) == "");
  CHECK(Words(departures.Leave(true)) == "");
}

TEST_CASE("departures: a member that left before it had read of the last batch takes that with it") {
  const Departures departures = FourRanks();
  CHECK(Words(departures.OnMemberGone(3, 7, 7)) == "");
  CHECK(Words(departures.OnMemberGone(3, UINT64_MAX, 7)) == "");  // members that only know that it has left
  CHECK(Words(departures.OnMemberGone(3, 6, 7)) ==
        "abort 3: Horovod has been shut down: rank 3 (on host 'b') called shutdown or exited in the middle of a "
        "collective");
}

TEST_CASE("departures: what fails for want of a rank says whose") {
  const Status status = FourRanks().ShutDown(2);
  CHECK(status.code == Code::kFailed);
  CHECK(status.lost_rank == 2);
  CHECK(status.text ==
        "Horovod has been shut down: rank 2 (on host 'b') called shutdown or exited, and this operation needs it");
}

TEST_CASE("departures: who still wanted something of a rank that has left is told what, and what to do") {
  const Status status = FourRanks().ShutDown(2, "'allreduce.loss'");
  CHECK(status.code == Code::kFailed);
  CHECK(status.lost_rank == 2);
  CHECK(
      status.text ==
      "Horovod has been shut down. Rank 2 finished while rank 0 still calls 'allreduce.loss'. Let all ranks make "
      "this call, outside of conditions such as `if hvd.rank() == 0`; if ranks only have different numbers of batches, "
      "use drop_last=True or hvd.join(). If rank 2 failed instead, its own error says why.");
}

TEST_CASE("departures: who hears of it in a set follows the tree") {
  using InSet = Departures::InSet;
  // Six members on three hosts. Member 0 leads; 2 and 4 are the first of their hosts and connect to 0; 1, 3 and 5
  // connect to the first member of their host.
  const std::vector<int> hosts = {0, 0, 1, 1, 2, 2};
  struct Row {
    int me, member;
    InSet departed, told;
    int by = 5;
  };
  const std::vector<Row> rows = {{0, 1, InSet::kCount, InSet::kCount},
                                 {0, 3, InSet::kCount, InSet::kCount},
                                 {0, 0, InSet::kCount, InSet::kNothing},
                                 {0, -1, InSet::kCount, InSet::kNothing},
                                 {1, 0, InSet::kClose, InSet::kClose},
                                 {1, 2, InSet::kNothing, InSet::kPassOn},
                                 {2, 0, InSet::kClose, InSet::kClose},
                                 {2, 3, InSet::kPassOn, InSet::kPassOn},
                                 {2, 4, InSet::kNothing, InSet::kPassOn},
                                 {3, 2, InSet::kClose, InSet::kClose},
                                 {3, 0, InSet::kNothing, InSet::kClose},
                                 {3, 5, InSet::kNothing, InSet::kPassOn},
                                 {3, -1, InSet::kNothing, InSet::kPassOn},
                                 // The leader reports that a member has left, or that it leaves itself.
                                 {1, 2, InSet::kNothing, InSet::kFarewell, 0},
                                 {2, 3, InSet::kPassOn, InSet::kFarewell, 0},
                                 {2, 0, InSet::kClose, InSet::kClose, 0},
                                 {1, -1, InSet::kNothing, InSet::kPassOn, 0}};
  for (const Row& row : rows) {
    CAPTURE(row.me);
    CAPTURE(row.member);
    const Tree tree = BuildTree(hosts, row.me);
    CHECK(Departures::WhenTold(tree, row.member, row.by) == row.told);
    if (row.member != row.me && row.member >= 0) CHECK(Departures::WhenDeparted(tree, row.member) == row.departed);
  }
}

TEST_CASE("departures: a way to the leader that is gone further up is gone for all below") {
  using InSet = Departures::InSet;
  const Tree third = BuildTree({0, 1, 2, 2}, 2, 1), last = BuildTree({0, 1, 2, 2}, 3, 1);  // the chain 0 - 1 - 2 - 3
  CHECK(Departures::WhenDeparted(third, 1) == InSet::kClose);
  CHECK(Departures::WhenTold(last, 1, 2) == InSet::kClose);
  CHECK(Departures::WhenTold(third, 3, 3) == InSet::kPassOn);
}

TEST_CASE("departures: an error of the engine ends the world, and names the lost rank if there is one") {
  const Departures departures = FourRanks();
  CHECK(Words(departures.Judge(Status::Ok())) == "");
  CHECK(Words(departures.Judge(Status::Failed("a report was malformed"))) == "abort -1: a report was malformed");
  CHECK(Words(departures.Judge(Status::Failed("it closed a lane", 2))) ==
        "abort 2: rank 2 is lost (on host 'b'): it closed a lane");
}

}  // namespace
}  // namespace hvd
