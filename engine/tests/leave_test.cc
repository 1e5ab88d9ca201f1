// SPDX-License-Identifier: Apache-2.0
// Ranks that leave while messages are in flight: on all other ranks the collective finishes or fails with the name of
// the rank.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/repeats.h"
#include "tests/whole_world.h"

namespace hvd::testing {
namespace {

std::unique_ptr<hvd::Operation> Sum(Rank& self, const char* name, std::vector<float>* x) {
  const std::vector<int64_t> shape = {static_cast<int64_t>(x->size())};
  return self.Operation(OpKind::kAllreduce, name, DType::kFloat32, shape, x->data(), x->data());
}

// Close the world, and check that it did not wait for a peer: unsent messages would keep it for a second.
void CloseAtOnce(Rank& self) {
  const auto begun = std::chrono::steady_clock::now();
  self.world().Close();
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::milliseconds(900));
}

}  // namespace

// On hosts with several ranks, some ranks forward messages of their host, even if no message is ever sent.
TEST_CASE("world: nobody waits for links over which nothing was ever said") {
  for (const std::vector<int>& placed : {std::vector<int>{0, 0, 1, 1}, {0, 1, 0, 1}}) {
    RunWorld({4, 2, true, 4096, nullptr, nullptr, placed}, [](Rank& self) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      CloseAtOnce(self);
    });
  }
}

TEST_CASE("world: who leaves before it has told anybody anything is not lost") {
  const auto spin = [](Settings* settings) { settings->spin_us = 1000; };
  for (unsigned repeat = 0; repeat < Repeats(16); ++repeat) {
    RunWorld({4, 2, true, 4096, spin, nullptr, {0, 0, 0, 1}}, [repeat](Rank& self) {
      const auto add = [&self](std::vector<int64_t> ranks) {
        auto operation = self.Operation<char>(OpKind::kAddProcessSet, "add", DType::kUInt8, {}, nullptr, nullptr);
        operation->request.splits = std::move(ranks);
        CHECK(self.Run(std::move(operation)).ok());
        return static_cast<int>(self.last->value);
      };
      const auto sum = [&self](int set, unsigned times) {
        for (unsigned step = 0; step < times; ++step) {
          std::vector<float> x(4, 1.0f);
          auto operation = Sum(self, "x", &x);
          operation->process_set = set;
          const Status status = self.Run(std::move(operation));
          CHECK_MESSAGE(status.ok(), status.text);
          CHECK(x[3] == 3);
        }
      };
      const int host = add({0, 1, 2}), rest = add({0, 1, 3});
      add({1, 2, 3});  // in this set, rank 2 forwards for the first host
      if (self.rank() < 3) sum(host, 20 * repeat);
      if (self.rank() == 2) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      sum(rest, 10);
      CloseAtOnce(self);
    });
  }
}

// Rank 2 has never sent anything to rank 1, and rank 1 said goodbye only to peers with a connection.
TEST_CASE("world: who calls a rank that has left goes on without it") {
  std::atomic<bool> left{false};
  RunWorld({3, 3, true}, [&left](Rank& self) {
    auto add = self.Operation<char>(OpKind::kAddProcessSet, "add", DType::kUInt8, {}, nullptr, nullptr);
    add->request.splits = {0, 2};
    CHECK(self.Run(std::move(add)).ok());
    const int rest = static_cast<int>(self.last->value);
    std::vector<float> x(4, 1.0f);
    CHECK(self.Run(Sum(self, "x", &x)).ok());
    if (self.rank() == 1) {
      self.world().Close();
      left = true;
      return;
    }
    while (!left) std::this_thread::yield();
    CHECK(self.Run(Sum(self, "x", &x)).code == Code::kFailed);
    auto sum = Sum(self, "y", &x);
    sum->process_set = rest;
    const Status status = self.Run(std::move(sum));
    CHECK_MESSAGE(status.ok(), status.text);
    CloseAtOnce(self);
  });
}

// The leaving rank's engine thread reports the tensor, and the leader's start record crosses its leave notice.
TEST_CASE("world: who leaves just as its tensor is agreed upon keeps nobody waiting") {
  for (const Layout& layout : {Layout{3, 1, true}, Layout{3, 1, false}, Layout{4, 2, true}}) {
    for (unsigned repeat = 0; repeat < Repeats(64); ++repeat) {
      std::atomic<bool> asked{false};
      Layout at_once = layout;
      at_once.adjust = [](Settings* settings) { settings->cycle_time_us = 0; };
      RunWorld(at_once, [&asked, repeat](Rank& self) {
        std::vector<float> x(5000, 1.0f);
        CHECK(self.Run(Sum(self, "first", &x)).ok());
        if (self.rank() == self.size() - 1) {
          self.Submit(Sum(self, "x", &x));
          asked = true;
          for (unsigned i = 0; i < 20 * repeat; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
          self.world().Close();
        } else {
          while (!asked) std::this_thread::yield();
          const Status status = self.Run(Sum(self, "x", &x));
          CHECK_MESSAGE((status.ok() || status.code == Code::kFailed), status.text);
          if (!status.ok()) CHECK(status.text.find("shut down") != std::string::npos);
        }
      });
    }
  }
}

}  // namespace hvd::testing
