// SPDX-License-Identifier: Apache-2.0
// Leaving while something is on its way: for all others it ends, well or by name.
#include <doctest/doctest.h>

#include <atomic>
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

}  // namespace

// Its engine thread reports the tensor; the leader's word to begin crosses its farewell.
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
