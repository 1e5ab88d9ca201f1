// SPDX-License-Identifier: Apache-2.0
#include "core/stack_teller.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

using hvd::StackTeller;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

const StackTeller::Clock::time_point kStart = StackTeller::Clock::time_point() + std::chrono::hours(1);

uint64_t TellAtOnce(void* context, char* text, uint64_t capacity) {
  const char* answer = static_cast<const char*>(context);
  const uint64_t bytes = std::min<uint64_t>(std::strlen(answer), capacity);
  std::memcpy(text, answer, bytes);
  return bytes;
}

uint64_t TellWhenAllowed(void* context, char* text, uint64_t) {
  while (!static_cast<std::atomic<bool>*>(context)->load()) std::this_thread::sleep_for(milliseconds(1));
  *text = 'x';
  return 1;
}

std::string Await(StackTeller* teller, StackTeller::Clock::time_point now) {
  for (int i = 0; i < 20000; ++i) {
    if (auto answer = teller->Answer(now)) return *answer;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return "no answer";
}

}  // namespace

TEST_CASE("stack teller: without anybody who can tell there is nothing to wait for") {
  StackTeller teller;
  teller.Ask(kStart);
  CHECK_FALSE(teller.asked());
  CHECK_FALSE(teller.Answer(kStart));
}

TEST_CASE("stack teller: one answer for each question") {
  StackTeller teller(TellAtOnce, const_cast<char*>("here"));
  for (int i = 0; i < 3; ++i) {
    teller.Ask(kStart);
    CHECK(Await(&teller, kStart) == "here");
    CHECK_FALSE(teller.asked());
    CHECK_FALSE(teller.Answer(kStart));
  }
}

TEST_CASE("stack teller: a program that cannot tell is given up after the limit, and heard when it can again") {
  static std::atomic<bool> allowed{false};
  StackTeller teller(TellWhenAllowed, &allowed);
  teller.Ask(kStart);
  CHECK_FALSE(teller.Answer(kStart + milliseconds(1999)));
  const auto refused = teller.Answer(kStart + seconds(2));
  REQUIRE(refused);
  CHECK(refused->find("no answer within 2 s") == 0);
  CHECK_FALSE(teller.asked());
  teller.Ask(kStart + seconds(60));
  CHECK_FALSE(teller.Answer(kStart + seconds(61)));
  allowed = true;
  CHECK(Await(&teller, kStart + seconds(61)) == "x");
}
