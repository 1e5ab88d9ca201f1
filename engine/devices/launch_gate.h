// SPDX-License-Identifier: Apache-2.0
// NCCL waits for ever if two ranks launch operations of two communicators in different orders. Inside a world all ranks
// agree on one (agreement/launch_order). Process groups of torch.distributed are worlds of their own, of which none
// knows another: their order is that of the program's calls, which has to be the same on all ranks. Every operation
// takes a ticket when it is called, and a world may launch while the oldest ticket in the process is one of its own. A
// ticket is given up when its operation is launched, fails, or goes another way: nobody waits for what will never be
// launched.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "devices/device.h"

namespace hvd {

class LaunchGate;

// Given up when it is destroyed, at the latest.
class LaunchTicket {
 public:
  LaunchTicket() = default;
  LaunchTicket(std::shared_ptr<LaunchGate> gate, uint64_t number) : gate_(std::move(gate)), number_(number) {}
  ~LaunchTicket() { GiveUp(); }
  uint64_t number() const { return number_; }  // those that were taken before have smaller ones
  LaunchTicket(LaunchTicket&& other) noexcept : gate_(std::move(other.gate_)), number_(other.number_) {}
  LaunchTicket& operator=(LaunchTicket&& other) noexcept;
  void GiveUp();

 private:
  std::shared_ptr<LaunchGate> gate_;
  uint64_t number_ = 0;
};

// One world among those of the process that launch in the order of calls; or one of two kinds of operations of such a
// world, each of which has an order of its own among them.
class CallOrder {
 public:
  // `wake`: called on any thread when the world may launch.
  explicit CallOrder(std::function<void()> wake);
  ~CallOrder() { Leave(); }
  CallOrder(const CallOrder&) = delete;
  CallOrder& operator=(const CallOrder&) = delete;

  // Any thread.
  LaunchTicket Take();
  // Whether the oldest ticket is one that was taken here.
  bool IsNext() const;
  // Whether all that are older than this one were taken here.
  bool IsNext(const LaunchTicket& ticket) const;

  // A stream of the process for what is launched beside the callers' own. It is never destroyed: frameworks remember
  // streams on which memory was used. With a Scope.
  CudaStream StreamOn(const Device& device) const;

  // Kernels of one communicator that run beside those of another may wait for each other in a circle: what `who` puts
  // on the stream next comes after what others launched there, and then others come after it. With a Scope; by whoever
  // may launch.
  void FollowOthers(const Device& device, const void* who, CudaStream stream) const;
  void Launched(Device* device, const void* who, CudaStream stream);

  // Nothing of this world is launched any more.
  void Leave();

  // In the child of a fork: its worlds are new ones. Takes no lock.
  static void StartAfresh();

 private:
  std::shared_ptr<LaunchGate> gate_;
};

}  // namespace hvd
