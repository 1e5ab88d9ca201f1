// SPDX-License-Identifier: Apache-2.0
// Global order of NCCL launches in a process. NCCL deadlocks if two ranks launch operations of two communicators in
// different orders. Inside a world, all ranks negotiate one order (agreement/launch_order). Process groups of
// torch.distributed, however, are separate worlds that do not know each other; their order is that of the program's
// calls, which must be equal on all ranks. Each operation takes a ticket when it is called, and a world may launch
// while the oldest ticket in the process is one of its own. An operation gives up its ticket when it is launched,
// fails, or takes another transport, so that no world waits for a launch that will never happen.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "devices/device.h"

namespace hvd {

class LaunchGate;

// Ticket of one operation; given up at the latest when it is destroyed.
class LaunchTicket {
 public:
  LaunchTicket() = default;
  LaunchTicket(std::shared_ptr<LaunchGate> gate, uint64_t number) : gate_(std::move(gate)), number_(number) {}
  ~LaunchTicket() { GiveUp(); }
  uint64_t number() const { return number_; }  // older tickets have smaller numbers
  LaunchTicket(LaunchTicket&& other) noexcept : gate_(std::move(other.gate_)), number_(other.number_) {}
  LaunchTicket& operator=(LaunchTicket&& other) noexcept;
  void GiveUp();

 private:
  std::shared_ptr<LaunchGate> gate_;
  uint64_t number_ = 0;
};

// Member of the global order: one world that launches in the order of calls. A world whose two kinds of operations have
// separate orders uses one object for each kind.
class CallOrder {
 public:
  // `wake` is called on any thread when the world may launch.
  explicit CallOrder(std::function<void()> wake);
  ~CallOrder() { Leave(); }
  CallOrder(const CallOrder&) = delete;
  CallOrder& operator=(const CallOrder&) = delete;

  // Take a ticket for an operation. Any thread may call this.
  LaunchTicket Take();
  // Return true if the oldest ticket was taken here, or if there is none.
  bool IsNext() const;
  // Return true if all tickets older than this one were taken here.
  bool IsNext(const LaunchTicket& ticket) const;

  // Return a stream of the process for work that runs beside the callers' own. It is never destroyed, because
  // frameworks remember streams on which memory was used. Call inside a Scope.
  CudaStream StreamOn(const Device& device) const;

  // Order kernels of different communicators, which could wait for each other in a cycle if they ran side by side.
  // FollowOthers lets the work that `who` puts on the stream next follow what others launched on the device; Launched
  // lets others follow this work. Call inside a Scope, and only while this world may launch.
  void FollowOthers(const Device& device, const void* who, CudaStream stream) const;
  void Launched(Device* device, const void* who, CudaStream stream);

  // Leave the order: this world launches nothing any more.
  void Leave();

  // Start a new order in the child of a fork, whose worlds are new. Takes no locks.
  static void StartAfresh();

 private:
  std::shared_ptr<LaunchGate> gate_;
};

}  // namespace hvd
