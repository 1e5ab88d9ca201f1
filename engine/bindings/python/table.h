// SPDX-License-Identifier: Apache-2.0
// What all of horovod._engine shares: the C API, Python exceptions, and waiting without the GIL.
#pragma once

#include <hvd/engine.h>
#include <nanobind/nanobind.h>

#include <string>

namespace hvd_python {

const hvd_api* Api();

void BindErrors(nanobind::module_& module);
nanobind::object ErrorOf(const hvd_status& status);  // returns an EngineError
[[noreturn]] void Raise(const hvd_status& status);

// Wait without the GIL, checking for signals every 50 ms. Return HVD_IN_PROGRESS when the time is over; a negative time
// is unlimited. Throws the exception of a signal handler; the operation then continues.
int32_t WaitUnlocked(hvd_world* world, int64_t handle, double timeout_s, hvd_status* status);

// Wait without a time limit, and release the handle. `look`: first poll while holding the GIL, because the operation
// may be done already.
int32_t FinishUnlocked(hvd_world* world, int64_t handle, bool look, hvd_status* status);

constexpr int kSignalPeriodMs = 50;

// Declares, until the end of its scope, that this thread only waits. Call Tell only after a wait has taken one period,
// so that short waits do not pay for it.
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
    thread_ = PyThread_get_thread_ident();  // the number that Python's threading module uses
    handle_ = handle;
    Api()->block(world_, handle, thread_);
  }

 private:
  hvd_world* const world_;
  int64_t handle_ = 0;
  uint64_t thread_ = 0;
};

// Return the error text for a tensor whose memory was changed while an operation used it.
std::string MovedText(const std::string& name);

}  // namespace hvd_python
