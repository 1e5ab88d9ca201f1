// SPDX-License-Identifier: Apache-2.0
#include "base/cores.h"

#include <sched.h>

#include <string>

#include "base/joining_thread.h"

namespace hvd {
namespace {

// Return the cores of the calling thread in the format of Linux, e.g. "0-3,8".
std::string CoresOfThisThread() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return "unknown";
  std::string text;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &set)) continue;
    const int first = core;
    while (core + 1 < CPU_SETSIZE && CPU_ISSET(core + 1, &set)) ++core;
    text += (text.empty() ? "" : ",") + std::to_string(first);
    if (core > first) text += "-" + std::to_string(core);
  }
  return text;
}

}  // namespace

bool PinThread(pthread_t thread, int core) {
  if (core < 0 || core >= CPU_SETSIZE) return false;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  return pthread_setaffinity_np(thread, sizeof set, &set) == 0;
}

Status CheckCore(int core) {
  bool pinned = false;
  JoiningThread(
      "hvd-core", [&] { pinned = PinThread(pthread_self(), core); }, [] {})
      .End();  // uses a thread of its own, so that the caller's affinity does not change
  if (pinned) return Status::Ok();
  return Status::Invalid("HOROVOD_THREAD_AFFINITY: the engine thread cannot be pinned to core " + std::to_string(core) +
                         ": this process runs on cores " + CoresOfThisThread());
}

}  // namespace hvd
