// SPDX-License-Identifier: Apache-2.0
// One call of a handler on its way through the engine: submitted, then waited for, then reported to XLA.
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

// The rank to blame for the last failure, or -1; told once.
int32_t TakeLostRank();

// The start of every message. TensorFlow's programs name the type of the operation, which is what its users look for.
std::string Blame(const Frame& frame);

// What a program hears whose process set is not there.
XLA_FFI_Error* NotAlive(const Frame& frame);

// How a call ended.
struct End {
  int32_t code = HVD_OK, lost_rank = -1;
  std::string text;

  End() = default;
  explicit End(const hvd_status& status);
};

// The handler and the engine's callback share it. The last of the two gives the handle back, while the world is
// certainly there: the handler holds the contexts' lock, the callback runs before the world is closed. Once XLA has
// been told, the program may have gone on to the next world.
class Call : public std::enable_shared_from_this<Call> {
 public:
  Call(const Frame& frame, hvd_world* world);
  virtual ~Call() { GiveBack(); }

  Operations operations;

  // Null, or what is wrong with the call.
  XLA_FFI_Error* Describe(const Frame& frame, const bindings::Membership& member, const Instance* instance);
  // Null, or why nothing has been started.
  XLA_FFI_Error* Submit(int32_t process_set, bool will_wait);
  // Whether it has ended within the time. The thread that waits drives the engine meanwhile.
  bool Wait(int milliseconds, End* end);
  // Null after success.
  XLA_FFI_Error* ErrorOf(End end) const;

 protected:
  // From now on the callback sees to the end, by Complete. False if it came before that; then this thread has to.
  bool LeaveToCallback() { return stage_.exchange(kLeft) != kDone; }
  // Called with the world still there. Whoever calls has the handle given back.
  virtual void Complete() = 0;
  void GiveBack();

  const XLA_FFI_Api* api() const { return api_; }
  hvd_world* world() const { return world_; }
  // For Complete, and for whoever could not leave it to the callback.
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
  End end_;  // the callback's until stage_ says that it is done
};

}  // namespace hvd::xla
