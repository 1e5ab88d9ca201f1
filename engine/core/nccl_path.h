// SPDX-License-Identifier: Apache-2.0
// Messages from one rank's GPU to another's over NCCL: a communicator of the two, a stream and a thread, for one
// direction. What goes here has been accepted by the receiver, in one order at both ends, and both tensors are ready:
// nothing that is launched waits for what is not there, so that no order among messages and collectives can close a
// circle; the receiver launches what the sender has committed itself to. A pair's first message connects the two inside
// NCCL, which takes as long as the other end does, and older versions allow a thread only one such call at a time:
// hence a thread for each. All else is the driver's.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <string>

#include "core/completions.h"
#include "core/handle.h"
#include "devices/communicator.h"
#include "devices/devices.h"

namespace hvd {

class NcclPath {
 public:
  using Clock = std::chrono::steady_clock;
  enum class End : int { kSender = 0, kReceiver = 1 };

  // All outlive it.
  NcclPath(Devices* devices, Device* device, const Nccl* nccl, End end, int peer);
  ~NcclPath();
  NcclPath(const NcclPath&) = delete;
  NcclPath& operator=(const NcclPath&) = delete;

  const Device* device() const { return device_; }

  // The receiver's: how the communicator is to be called. Null: that is not known yet.
  const NcclId* Name();
  // From here on the two connect.
  void Meet(const NcclId& name);
  // Behind those that are here already.
  void Put(std::unique_ptr<Operation> operation) {
    waiting_.push_back(std::move(operation));
    ++devices_->to_launch();
  }
  // The receiver's: the sender is certain to launch one more, so that this end may.
  void Commit() { ++committed_; }
  // Launches what it can; an operation is done when it is launched. Throws DeviceError a while after something went
  // wrong: whoever is lost is told of first.
  bool Step(Completions* completions);

  // The world has ended, or this rank leaves: what has not been launched fails, and nothing is waited for any longer.
  void Fail(Completions* completions, const Status& status);
  // The other end has left on good terms. What it is certain to have launched can still be done; the rest fails.
  void OnLeft(Completions* completions, const Status& status);
  // Something was launched for which the other end, which has left, has not done its part.
  bool IsStuck(Clock::time_point now) const;
  // What NCCL has found wrong since it was last asked, on the thread: asks again. Empty: nothing so far.
  std::string Trouble();
  // Kernels that wait for the other end give up.
  void Abort();
  // After the last step. `whole`: nobody is lost.
  void Leave(bool whole, Clock::time_point until);

 private:
  struct Shared;  // with the thread
  enum class State { kNew, kNaming, kConnecting, kOpen, kEnded };

  bool IsJobOver(Completions* completions);
  bool MayLaunch() const { return !waiting_.empty() && (end_ == End::kSender || committed_ > 0); }
  void Launch(const Operation& operation);
  void Finish(Completions* completions);

  Devices* devices_;
  Device* device_;
  const Nccl* nccl_;
  End end_;
  int peer_;
  State state_ = State::kNew;
  NcclId name_{};
  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<DeviceWorker::Job> job_, look_;
  Clock::time_point failed_{}, left_at_{};
  Status left_;             // ok: it has not
  uint64_t committed_ = 0;  // of those that wait, the receiver's
  bool launching_ = false;  // the first of those that wait
  std::deque<std::unique_ptr<Operation>> waiting_;
  std::shared_ptr<DeviceMark> last_;  // what was launched last
  std::unique_ptr<DeviceWorker> thread_;
};

}  // namespace hvd
