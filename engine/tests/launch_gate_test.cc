// SPDX-License-Identifier: Apache-2.0
// Worlds in one process launch in the order of calls, and none waits for an operation that will not be launched.
#include "devices/launch_gate.h"

#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace {

using hvd::CallOrder;
using hvd::LaunchTicket;

struct World {
  int woken = 0;
  CallOrder order{[this] { ++woken; }};
};

TEST_CASE("the world of the oldest ticket launches") {
  World a, b;
  CHECK(a.order.IsNext());  // no ticket exists
  LaunchTicket first = a.order.Take(), second = b.order.Take(), third = a.order.Take();
  CHECK(a.order.IsNext());
  CHECK_FALSE(b.order.IsNext());
  first.GiveUp();
  CHECK_FALSE(a.order.IsNext());
  CHECK(b.order.IsNext());
  CHECK(b.woken == 1);
  CHECK(a.woken == 0);
  second = LaunchTicket();  // frees the ticket, as an operation that is reused does
  CHECK(a.order.IsNext());
  CHECK(a.woken == 1);
  third.GiveUp();
  third.GiveUp();
  CHECK(b.order.IsNext());
}

TEST_CASE("of one world's tickets in a row, each may launch; others' stand between the rest") {
  World agreed, prompt;
  LaunchTicket first = prompt.order.Take(), second = prompt.order.Take(), other = agreed.order.Take();
  LaunchTicket third = prompt.order.Take();
  CHECK(prompt.order.IsNext(first));
  CHECK(prompt.order.IsNext(second));
  CHECK_FALSE(prompt.order.IsNext(third));
  CHECK_FALSE(agreed.order.IsNext());
  second.GiveUp();
  CHECK_FALSE(agreed.order.IsNext());
  first.GiveUp();
  CHECK(agreed.order.IsNext());
  CHECK(agreed.woken == 1);
  CHECK_FALSE(prompt.order.IsNext(third));
  other.GiveUp();
  CHECK(prompt.order.IsNext(third));
  CHECK(prompt.woken == 1);
}

TEST_CASE("a ticket that is given up out of turn wakes nobody, and is not waited for") {
  World a, b, c;
  LaunchTicket first = a.order.Take(), second = b.order.Take(), third = c.order.Take();
  second.GiveUp();
  CHECK(b.woken + c.woken == 0);
  LaunchTicket moved = std::move(first);
  CHECK(a.order.IsNext());
  moved.GiveUp();
  CHECK(c.order.IsNext());
  CHECK(c.woken == 1);
}

TEST_CASE("a world that leaves takes its tickets along, and those that it still holds harm nobody") {
  World b;
  auto a = std::make_unique<World>();
  LaunchTicket first = a->order.Take(), second = b.order.Take();
  CHECK_FALSE(b.order.IsNext());
  a.reset();
  CHECK(b.order.IsNext());
  CHECK(b.woken == 1);
  first.GiveUp();
  CHECK(b.order.IsNext());
}

TEST_CASE("in the child of a fork nothing of the parent's is waited for") {
  World parents;
  LaunchTicket old = parents.order.Take();
  CallOrder::StartAfresh();
  World own;
  LaunchTicket ticket = own.order.Take();
  CHECK(own.order.IsNext());
  old.GiveUp();
  CHECK(own.woken == 0);
}

TEST_CASE("worlds driven by threads of their own launch in the order of the calls") {
  constexpr int kWorlds = 4, kCalls = 2000;
  std::vector<std::unique_ptr<CallOrder>> worlds;
  for (int w = 0; w < kWorlds; ++w) worlds.push_back(std::make_unique<CallOrder>([] {}));
  std::vector<std::vector<std::pair<int, LaunchTicket>>> calls(kWorlds);
  std::mt19937 dice(7);
  for (int call = 0; call < kCalls; ++call) {
    const auto w = static_cast<size_t>(dice() % kWorlds);
    calls[w].emplace_back(call, worlds[w]->Take());
  }
  std::atomic<int> launched{0};
  std::atomic<bool> in_order{true};
  std::vector<std::thread> drivers;
  for (size_t w = 0; w < kWorlds; ++w) {
    drivers.emplace_back([&, w] {
      for (auto& [call, ticket] : calls[w]) {
        while (!worlds[w]->IsNext()) std::this_thread::yield();
        if (launched.fetch_add(1) != call) in_order = false;
        ticket.GiveUp();
      }
    });
  }
  for (std::thread& driver : drivers) driver.join();
  CHECK(launched == kCalls);
  CHECK(in_order);
}

TEST_CASE("worlds with two kinds of operations each launch in the order of the calls") {
  constexpr int kWorlds = 3, kCalls = 2000;
  struct Call {
    int number;
    bool prompt;
    LaunchTicket ticket;
  };
  std::vector<std::unique_ptr<CallOrder>> agreed, prompt;
  for (int w = 0; w < kWorlds; ++w) {
    agreed.push_back(std::make_unique<CallOrder>([] {}));
    prompt.push_back(std::make_unique<CallOrder>([] {}));
  }
  std::vector<std::vector<Call>> calls(kWorlds);
  std::mt19937 dice(11);
  for (int number = 0; number < kCalls; ++number) {
    const auto w = static_cast<size_t>(dice() % kWorlds);
    const bool is_prompt = dice() % 4 != 0;
    calls[w].push_back({number, is_prompt, (is_prompt ? prompt : agreed)[w]->Take()});
  }
  std::atomic<int> launched{0};
  std::atomic<bool> in_order{true};
  std::vector<std::thread> drivers;
  for (size_t w = 0; w < kWorlds; ++w) {
    drivers.emplace_back([&, w] {
      for (Call& call : calls[w]) {
        while (!(call.prompt ? prompt[w]->IsNext(call.ticket) : agreed[w]->IsNext())) std::this_thread::yield();
        if (launched.fetch_add(1) != call.number) in_order = false;
        call.ticket.GiveUp();
      }
    });
  }
  for (std::thread& driver : drivers) driver.join();
  CHECK(launched == kCalls);
  CHECK(in_order);
}

}  // namespace
