// SPDX-License-Identifier: Apache-2.0
// Whole worlds whose ranks wait for each other.
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/whole_world.h"

namespace hvd::testing {
namespace {

const Layout kLayouts[] = {{2, 1, true}, {3, 1, false}, {4, 2, true}};

uint64_t TellOfThread(void* context, uint64_t thread, char* text, uint64_t capacity) {
  const std::string answer = static_cast<const char*>(context) + std::to_string(thread);
  const uint64_t bytes = std::min<uint64_t>(answer.size(), capacity);
  std::memcpy(text, answer.data(), bytes);
  return bytes;
}

Layout Watched(Layout layout, const char* answer) {
  // With more than two ranks, two of them are found stuck after three quarters of the limit. The others must have
  // called by then.
  layout.adjust = [ranks = layout.ranks](Settings* settings) { settings->deadlock_ms = ranks > 2 ? 4000 : 200; };
  layout.prepare = [answer](World* world) { world->UseBlockTeller({TellOfThread, const_cast<char*>(answer)}); };
  return layout;
}

std::unique_ptr<hvd::Operation> Sum(Rank& self, const std::string& name, float* x) {
  return self.Operation(OpKind::kAllreduce, name, DType::kFloat32, {1}, x, x);
}

Status RunBlocked(Rank& self, const std::string& name, uint64_t thread) {
  float x = 1;
  const int64_t handle = self.Submit(Sum(self, name, &x), true);
  self.world().Block(handle, thread);
  const Status status = self.Wait(handle);
  self.world().Unblock(thread);
  self.world().Release(handle);
  return status;
}

}  // namespace

TEST_CASE("world: ranks that wait for each other fail, and go on together") {
  for (const Layout& layout : kLayouts) {
    RunWorld(Watched(layout, "1at "), [](Rank& self) {
      const bool last = self.rank() == self.size() - 1;
      for (int time = 0; time < (self.size() > 2 ? 1 : 2); ++time) {
        CHECK(RunBlocked(self, "before", 7).ok());
        const Status status = RunBlocked(self, last ? "x" : "y", 8);
        CHECK(status.code == Code::kMismatch);
        CHECK_MESSAGE(status.text.find(" in allreduce 'y' (at 8)") != std::string::npos, status.text);
        CHECK_MESSAGE(status.text.find(" in allreduce 'x' (at 8)") != std::string::npos, status.text);
      }
      CHECK(RunBlocked(self, "after", 7).ok());
    });
  }
}

TEST_CASE("world: what another thread may still release does not fail") {
  for (const bool told : {false, true}) {
    // Either the program reports no other thread, yet another thread has submitted something; or the program reports
    // one.
    RunWorld(Watched({2, 1, true}, told ? "0" : "1"), [told](Rank& self) {
      const std::string own = self.rank() ? "x" : "y", other = self.rank() ? "y" : "x";
      if (!told) std::thread([&self] { CHECK(RunBlocked(self, "of another thread", 9).ok()); }).join();
      std::thread rescuer([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(600));  // three times the limit
        CHECK(RunBlocked(self, other, 2).ok());
      });
      CHECK(RunBlocked(self, own, 1).ok());
      rescuer.join();
    });
  }
}

}  // namespace hvd::testing
