// SPDX-License-Identifier: Apache-2.0
// What all of horovod._engine shares: the C API, errors as Python's, and waiting without the GIL.
#pragma once

#include <hvd/engine.h>
#include <nanobind/nanobind.h>

#include <string>

namespace hvd_python {

const hvd_api* Api();

void BindErrors(nanobind::module_& module);
nanobind::object ErrorOf(const hvd_status& status);  // an EngineError
[[noreturn]] void Raise(const hvd_status& status);

// Without the GIL, looking for signals every 50 ms: HVD_IN_PROGRESS once the time is over (negative: never). Throws
// what a signal handler raised; the operation then goes on.
int32_t WaitUnlocked(hvd_world* world, int64_t handle, double timeout_s, hvd_status* status);

// The same without a limit, and released at the end. `look`: it may be done, and then no other thread need run
// meanwhile.
int32_t FinishUnlocked(hvd_world* world, int64_t handle, bool look, hvd_status* status);

constexpr int kSignalPeriodMs = 50;

// Tells the engine, until the end of its scope, that this thread does nothing but wait. Not before a wait has taken one
// period: most are over by then, and need not pay for it.
class Blocked {
 public:
  explicit Blocked(hvd_world* world) : world_(world) {}
  ~Blocked() {
    if (handle_) Api()->unblock(world_, thread_);
  }
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;

  void Tell(int64_t handle) {
    if (handle == handle_) return;
    thread_ = PyThread_get_thread_ident();  // as Python's own threading numbers them
    handle_ = handle;
    Api()->block(world_, handle, thread_);
  }

 private:
  hvd_world* const world_;
  int64_t handle_ = 0;
  uint64_t thread_ = 0;
};

// What is said about a tensor whose memory was taken from an operation under way.
std::string MovedText(const std::string& name);

}  // namespace hvd_python
