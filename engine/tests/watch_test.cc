// SPDX-License-Identifier: Apache-2.0
#include "agreement/watch.h"

#include <doctest/doctest.h>

#include "base/rank_list.h"

using hvd::Heartbeats;
using hvd::StallInspector;
using hvd::WatchTime;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

const WatchTime kStart = WatchTime() + std::chrono::hours(1);

std::vector<hvd::Coordinator::Waiting> Waiting(std::vector<std::string> names) {
  std::vector<hvd::Coordinator::Waiting> waiting;
  for (std::string& name : names) waiting.push_back({std::move(name), {1, 3}});
  return waiting;
}

}  // namespace

TEST_CASE("watch: a peer is silent only after the limit, and a sign of life starts it anew") {
  Heartbeats beats{seconds(10)};
  beats.Expect(1, kStart);
  beats.Expect(2, kStart);
  for (int second = 1; second < 10; ++second) {
    beats.Heard(2, kStart + seconds(second));
    CHECK(beats.Silent(kStart + seconds(second)).empty());
  }
  CHECK(beats.Silent(kStart + milliseconds(9999)).empty());
  CHECK(beats.Silent(kStart + seconds(10)) == std::vector<int>{1});
  beats.Forget(1);
  CHECK(beats.Silent(kStart + milliseconds(11500)).empty());
}

TEST_CASE("watch: whoever slept himself blames nobody") {
  Heartbeats beats{seconds(10)};
  beats.Expect(1, kStart);
  CHECK(beats.Silent(kStart + seconds(1)).empty());
  CHECK(beats.Silent(kStart + seconds(60)).empty());  // this process was stopped for a minute
  for (int second = 61; second < 70; ++second) CHECK(beats.Silent(kStart + seconds(second)).empty());
  CHECK(beats.Silent(kStart + seconds(70)) == std::vector<int>{1});
}

TEST_CASE("watch: the end of a limit is looked at when it comes, and not a period later") {
  Heartbeats beats{seconds(10)};
  CHECK(beats.NextLook(kStart) == kStart + Heartbeats::kPeriod);
  beats.Expect(1, kStart - milliseconds(300));
  beats.Expect(2, kStart);
  CHECK(beats.NextLook(kStart + milliseconds(9600)) == kStart + milliseconds(9700));
  beats.Heard(1, kStart - milliseconds(400));  // older than the last message
  CHECK(beats.NextLook(kStart + milliseconds(9600)) == kStart + milliseconds(9700));
  beats.Heard(1, kStart + seconds(5));
  CHECK(beats.NextLook(kStart + milliseconds(9600)) == kStart + seconds(10));
}

TEST_CASE("watch: whoever was away for longer than the limit knows that he was given up, for a while") {
  Heartbeats beats{seconds(10)};
  beats.Expect(1, kStart);
  CHECK(beats.Absence(kStart) == seconds(0));
  beats.Silent(kStart);
  CHECK(beats.Absence(kStart + seconds(9)) == seconds(0));
  CHECK(beats.Absence(kStart + seconds(13)) == seconds(13));  // noticed before the first look after the pause
  beats.Silent(kStart + seconds(13));
  CHECK(beats.Absence(kStart + seconds(14)) == seconds(13));
  CHECK(Heartbeats::AbsenceText(seconds(13)).find("13 s") != std::string::npos);
  beats.Silent(kStart + seconds(14));
  CHECK(beats.Absence(kStart + seconds(16)) == seconds(0));
}

TEST_CASE("watch: a limit of zero means for ever") {
  Heartbeats beats{seconds(0)};
  beats.Expect(1, kStart);
  for (int second = 1; second < 100; ++second) CHECK(beats.Silent(kStart + seconds(second)).empty());
}

TEST_CASE("watch: a stall is reported once, with who is missing and how long") {
  StallInspector inspector({seconds(60), seconds(0)});
  CHECK(inspector.Inspect(Waiting({"x"}), kStart).empty());
  CHECK(inspector.Inspect(Waiting({"x"}), kStart + seconds(59)).empty());
  const auto findings = inspector.Inspect(Waiting({"x", "y"}), kStart + seconds(60));
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].name == "x");
  CHECK(findings[0].missing == std::vector<int>{1, 3});
  CHECK(findings[0].waited == seconds(60));
  CHECK(!findings[0].fatal);
  CHECK(inspector.Inspect(Waiting({"x"}), kStart + seconds(61)).empty());
  // The tensor arrived in the end. The same name may stall again later.
  CHECK(inspector.Inspect({}, kStart + seconds(62)).empty());
  CHECK(inspector.Inspect(Waiting({"x"}), kStart + seconds(63)).empty());
  CHECK(inspector.Inspect(Waiting({"x"}), kStart + seconds(123)).size() == 1);
}

TEST_CASE("watch: a stall is fatal only where that was asked for") {
  StallInspector inspector({seconds(5), seconds(8)});
  inspector.Inspect(Waiting({"x"}), kStart);
  CHECK(!inspector.Inspect(Waiting({"x"}), kStart + seconds(5)).at(0).fatal);
  CHECK(inspector.Inspect(Waiting({"x"}), kStart + seconds(8)).at(0).fatal);
  StallInspector off({seconds(0), seconds(0)});
  off.Inspect(Waiting({"x"}), kStart);
  CHECK(off.Inspect(Waiting({"x"}), kStart + seconds(1000)).empty());
}

TEST_CASE("watch: lists of ranks are cut") {
  CHECK(hvd::ListOfRanks({1, 2}) == "1, 2");
  CHECK(hvd::ListOfRanks(std::vector<int>(20, 7)).find(" and 4 more") != std::string::npos);
}
