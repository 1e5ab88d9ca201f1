// SPDX-License-Identifier: Apache-2.0
// One call of a handler: it is submitted to the engine, then awaited, then reported to XLA.
#pragma once

#include <hvd/engine.h>

#include <atomic>
#include <memory>
#include <string>

#include "bindings/shared/contexts.h"
#include "bindings/xla/frame.h"
#include "bindings/xla/instances.h"
#include "bindings/xla/operations.h"

namespace hvd::xla {

bindings::Contexts& AllContexts();
const hvd_api* Engine();

// Return the rank that caused the last failure, or -1; each failure is returned once.
int32_t TakeLostRank();

// Return the prefix of error messages. For TensorFlow it contains the type of the operation, because users search for
// that.
std::string Blame(const Frame& frame);

// Return the error for a program whose process set does not exist.
XLA_FFI_Error* NotAlive(const Frame& frame);

// Result of a call.
struct End {
  int32_t code = HVD_OK, lost_rank = -1;
  std::string text;

  End() = default;
  explicit End(const hvd_status& status);
};

// State shared by the handler and the engine's callback. The last of the two releases the handle, while the world
// certainly exists: the handler holds the contexts' lock, and the callback runs before the world is closed. After XLA
// has been informed, the program may already use the next world.
class Call : public std::enable_shared_from_this<Call> {
 public:
  Call(const Frame& frame, hvd_world* world);
  virtual ~Call() { GiveBack(); }

  Operations operations;

  // Prepare the operations. Return null, or an error about the call.
  XLA_FFI_Error* Describe(const Frame& frame, const bindings::Membership& member, const Instance* instance);
  // Submit the call. Return null, or the reason for which nothing was started.
  XLA_FFI_Error* Submit(int32_t process_set, bool will_wait);
  // Wait for the end; return false if the time is over first. The waiting thread drives the engine meanwhile.
  bool Wait(int milliseconds, End* end);
  // Return the error to report, or null after success.
  XLA_FFI_Error* ErrorOf(End end) const;

 protected:
  // Let the engine's callback finish the call through Complete. Return false if the callback has already run; the
  // caller must then finish the call itself.
  bool LeaveToCallback() { return stage_.exchange(kLeft) != kDone; }
  // Finish the call. Called while the world still exists, after the handle has been released.
  virtual void Complete() = 0;
  void GiveBack();

  const XLA_FFI_Api* api() const { return api_; }
  hvd_world* world() const { return world_; }
  // Return the result; for Complete, and for a caller to which LeaveToCallback returned false.
  const End& end() const { return end_; }

 private:
  enum Stage { kRunning, kLeft, kDone };

  static void OnDone(void* context, const hvd_status* status);

  const XLA_FFI_Api* api_;
  hvd_world* world_;
  const std::string blame_;
  const bool tensorflow_;
  std::atomic<int64_t> handle_{0};
  std::atomic<int> stage_{kRunning};
  End end_;  // only the callback may access it until stage_ is kDone
};

}  // namespace hvd::xla
