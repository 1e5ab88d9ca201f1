// SPDX-License-Identifier: Apache-2.0
// The way of control messages through the tree of a process set. The whole set is simulated in one thread.
#include "core/set_mail.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/coordinator_helpers.h"

namespace hvd {
namespace {

using control::Type;

const std::vector<int> kRanks = {3, 5, 6, 8, 9};
const std::vector<int> kHosts = {0, 0, 1, 1, 2};  // by member

struct Letter {
  int from, to;
  std::string bytes;
};

// What one member sends with, and where all letters of the set wait.
struct Post {
  int from;
  std::deque<Letter>* letters;
  void Send(int to, std::string_view message) const { letters->push_back({from, to, std::string(message)}); }
};

struct Member {
  Member(int me, std::deque<Letter>* letters)
      : tree(BuildTree(kHosts, me)),
        post{kRanks[static_cast<size_t>(me)], letters},
        mail({{7, 2}, me, &kRanks, &tree}, &state, &departures, &post) {}

  Tree tree;
  MemberState state;
  Departures departures{0, std::vector<std::string>(10, "host"), {}};
  Post post;
  BasicSetMail<Post> mail;
  std::vector<uint64_t> turns, texts;
};

// A process set of five members on three hosts: members 0, 2 and 4 are the first of their hosts.
class Set {
 public:
  Set() {
    for (size_t me = 0; me < kRanks.size(); ++me) members_.push_back(std::make_unique<Member>(me, &letters));
  }
  Member& operator[](int member) { return *members_[static_cast<size_t>(member)]; }
  void Ask(int member, uint64_t sequence) {
    (*this)[member].mail.ToLeader(Type::kTurn, Turn{7, 2, sequence}, Keep((*this)[member]));
  }
  // Deliver the first letter. Return false if it is malformed.
  bool Deliver() {
    const Letter letter = letters.front();
    letters.pop_front();
    hops.emplace_back(letter.from, letter.to);
    const auto at = std::find(kRanks.begin(), kRanks.end(), letter.to) - kRanks.begin();
    Member& member = (*this)[static_cast<int>(at)];
    const std::string_view body = std::string_view(letter.bytes).substr(control::kHeaderBytes);
    if (control::TypeOf(letter.bytes) == Type::kTurn) {
      return member.mail.OnWayUp<Turn>(letter.bytes, body, Keep(member));
    }
    return member.mail.OnWayDown<control::StallNotice>(
        letter.bytes, body, [&](const control::StallNotice& notice) { member.texts.push_back(notice.text.size()); });
  }
  void DeliverAll() {
    while (!letters.empty()) CHECK(Deliver());
  }

  std::deque<Letter> letters;
  std::vector<std::pair<int, int>> hops;  // ranks between which letters went, in order

 private:
  static std::function<void(const Turn&)> Keep(Member& member) {
    return [&member](const Turn& turn) { member.turns.push_back(turn.sequence); };
  }

  std::vector<std::unique_ptr<Member>> members_;
};

control::Report ReportIn(const Letter& letter) {
  std::string_view body = letter.bytes;
  control::Header header;
  control::Report report;
  REQUIRE(control::Decode(&body, &header));
  CHECK(header.set == 7);
  CHECK(header.epoch == 2);
  REQUIRE(control::DecodeReport(header.type, &body, &report));
  return report;
}

}  // namespace

TEST_CASE("set mail: a message goes up through the first member of the host, and only the leader handles it") {
  Set set;
  set.Ask(3, 11);
  set.Ask(2, 12);
  set.DeliverAll();
  CHECK(set.hops == std::vector<std::pair<int, int>>{{8, 6}, {6, 3}, {6, 3}});
  CHECK(set[0].turns == std::vector<uint64_t>{12, 11});
  for (int member : {1, 2, 3, 4}) CHECK(set[member].turns.empty());
}

TEST_CASE("set mail: the leader's message to itself is handled at once and is not sent") {
  Set set;
  set.Ask(0, 5);
  CHECK(set[0].turns == std::vector<uint64_t>{5});
  CHECK(set.letters.empty());
}

TEST_CASE("set mail: a message from the leader reaches each member once") {
  Set set;
  set[0].mail.Publish(Type::kStall, control::StallNotice{"x", "four", {}});
  set.DeliverAll();
  CHECK(set.hops.size() == 4);
  for (int member : {1, 2, 3, 4}) CHECK(set[member].texts == std::vector<uint64_t>{4});
  CHECK(set[0].texts.empty());
}

TEST_CASE("set mail: a member that has departed receives nothing from above, the others do") {
  Set set;
  set[0].departures.OnBye(9);
  set[0].mail.Publish(Type::kStall, control::StallNotice{"x", "text", {}});
  set.DeliverAll();
  CHECK(set[4].texts.empty());
  for (int member : {1, 2, 3}) CHECK(set[member].texts.size() == 1);
}

TEST_CASE("set mail: without the leader, a member neither sends messages up nor passes them on") {
  Set set;
  set.Ask(3, 11);
  set[2].state.Close(Status::Failed("the leader has left"));
  set.Ask(2, 12);
  set.DeliverAll();
  CHECK(set.hops == std::vector<std::pair<int, int>>{{8, 6}});
  CHECK(set[0].turns.empty());
}

TEST_CASE("set mail: slots are reported together, and before a request that follows them") {
  Set set;
  Member& member = set[1];
  member.mail.Flush();
  CHECK(set.letters.empty());
  member.state.Advance(1);
  member.mail.AddReady(4);
  member.mail.AddReady(9);
  member.mail.SendRequest(testing::Allreduce("x"));
  member.mail.AddReady(2);
  member.mail.Flush();
  member.mail.Flush();
  REQUIRE(set.letters.size() == 3);
  for (const Letter& letter : set.letters) CHECK(letter.to == 3);
  const control::Report slots = ReportIn(set.letters[0]);
  CHECK(slots.slots == std::vector<uint32_t>{4, 9});
  CHECK(slots.member == 1);
  CHECK(slots.seen == 1);
  CHECK(ReportIn(set.letters[1]).request.name == "x");
  CHECK(ReportIn(set.letters[2]).slots == std::vector<uint32_t>{2});
}

TEST_CASE("set mail: a malformed message is noticed where it is handled, and passed on like any other") {
  Set set;
  set.Ask(3, 11);
  set.letters.front().bytes.pop_back();
  CHECK(set.Deliver());  // on its way
  CHECK_FALSE(set.Deliver());
  CHECK(set[0].turns.empty());
}

}  // namespace hvd
