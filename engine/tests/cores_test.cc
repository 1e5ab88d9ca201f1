// SPDX-License-Identifier: Apache-2.0
#include "base/cores.h"

#include <doctest/doctest.h>
#include <sched.h>

#include <string>
#include <thread>

namespace {

cpu_set_t CoresNow() {
  cpu_set_t set;
  REQUIRE(sched_getaffinity(0, sizeof set, &set) == 0);
  return set;
}

int FirstOf(const cpu_set_t& set) {
  int core = 0;
  while (!CPU_ISSET(core, &set)) ++core;
  return core;
}

}  // namespace

TEST_CASE("cores: one thread is pinned, and no other") {
  const cpu_set_t before = CoresNow();
  const int core = FirstOf(before);
  cpu_set_t inside = before;
  std::thread([&] {
    CHECK(hvd::PinThread(pthread_self(), core));
    inside = CoresNow();
  }).join();
  const cpu_set_t after = CoresNow();
  CHECK(CPU_COUNT(&inside) == 1);
  CHECK(CPU_ISSET(core, &inside));
  CHECK(CPU_EQUAL(&before, &after));
}

TEST_CASE("cores: one that is not there is refused with those that are") {
  const cpu_set_t before = CoresNow();
  const int core = FirstOf(before);
  CHECK(hvd::CheckCore(core).ok());
  for (int wrong : {-1, CPU_SETSIZE - 1, CPU_SETSIZE, 1 << 30}) {
    const hvd::Status status = hvd::CheckCore(wrong);
    CHECK(status.code == hvd::Code::kInvalid);
    const std::string expected = "HOROVOD_THREAD_AFFINITY: the engine thread cannot be pinned to core " +
                                 std::to_string(wrong) + ": this process runs on cores " + std::to_string(core);
    CHECK_MESSAGE(status.text.find(expected) != std::string::npos, status.text);
  }
  const cpu_set_t after = CoresNow();
  CHECK(CPU_EQUAL(&before, &after));
}
