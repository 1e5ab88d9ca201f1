// SPDX-License-Identifier: Apache-2.0
#include "devices/launch_gate.h"

#include <atomic>
#include <map>
#include <mutex>

#include "devices/devices.h"

namespace hvd {

// Order of one process; tickets keep it alive.
class LaunchGate {
 public:
  static std::shared_ptr<LaunchGate>& OfProcess() {
    // Leak the gate, because tickets may exist until the process ends.
    static auto* const gate = new auto(std::make_shared<LaunchGate>());
    return *gate;
  }

  void Enter(const CallOrder* world, std::function<void()> wake) {
    std::lock_guard<std::mutex> lock(mutex_);
    wakes_[world] = std::move(wake);
  }

  void Leave(const CallOrder* world) {
    if (left_behind_.load()) return;
    {
      std::lock_guard<std::mutex> lock(launching_);
      for (auto it = last_.begin(); it != last_.end();) it = it->second.world == world ? last_.erase(it) : ++it;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = tickets_.begin(); it != tickets_.end();) it = it->second == world ? tickets_.erase(it) : ++it;
    wakes_.erase(world);
    WakeNext();
  }

  uint64_t Take(const CallOrder* world) {
    std::lock_guard<std::mutex> lock(mutex_);
    tickets_.emplace_hint(tickets_.end(), ++count_, world);
    return count_;
  }

  void GiveUp(uint64_t number) {
    if (left_behind_.load()) return;
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = tickets_.find(number);
    if (found == tickets_.end()) return;
    const bool was_next = found == tickets_.begin();
    tickets_.erase(found);
    if (was_next) WakeNext();
  }

  bool IsNext(const CallOrder* world) {
    std::lock_guard<std::mutex> lock(mutex_);
    return tickets_.empty() || tickets_.begin()->second == world;
  }

  bool IsNext(const CallOrder* world, uint64_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [older, of] : tickets_) {
      if (older >= number) break;
      if (of != world) return false;
    }
    return true;
  }

  CudaStream StreamOn(const Device& device) {
    std::lock_guard<std::mutex> lock(making_);
    CudaStream& stream = streams_[device.ordinal()];
    if (!stream) stream = device.NewStream();
    return stream;
  }

  void FollowLast(const Device& device, const void* who, CudaStream stream) {
    std::lock_guard<std::mutex> lock(launching_);
    const auto found = last_.find(device.ordinal());
    if (found == last_.end() || found->second.who == who) return;
    device.WaitFor(found->second.mark->event(), stream);
  }

  void SetLast(Device* device, const CallOrder* world, const void* who, CudaStream stream) {
    std::lock_guard<std::mutex> lock(launching_);
    last_[device->ordinal()] = {world, who, std::make_unique<DeviceMark>(device, device->Mark(stream))};
  }

  // Keep the old gate without destroying it, because threads that do not exist in the child may hold its locks.
  void Replace(std::shared_ptr<LaunchGate> old) {
    old->left_behind_.store(true);
    before_ = std::move(old);
  }

 private:
  struct Last {
    const CallOrder* world = nullptr;
    const void* who = nullptr;
    std::unique_ptr<DeviceMark> mark;
  };

  void WakeNext() {
    if (tickets_.empty()) return;
    const auto found = wakes_.find(tickets_.begin()->second);
    if (found != wakes_.end()) found->second();
  }

  std::atomic<bool> left_behind_{false};  // set in the child of a fork, where the locks may never be released
  std::mutex mutex_;                      // guards count_, tickets_ and wakes_
  uint64_t count_ = 0;
  std::map<uint64_t, const CallOrder*> tickets_;  // oldest first
  std::map<const CallOrder*, std::function<void()>> wakes_;
  std::mutex launching_;      // guards last_; a thread that holds it may have to wait for the CUDA driver
  std::map<int, Last> last_;  // the last launch, by the number of the device
  std::mutex making_;         // guards streams_
  std::map<int, CudaStream> streams_;
  std::shared_ptr<LaunchGate> before_;
};

LaunchTicket& LaunchTicket::operator=(LaunchTicket&& other) noexcept {
  if (this == &other) return *this;
  GiveUp();
  gate_ = std::move(other.gate_);
  number_ = other.number_;
  return *this;
}

void LaunchTicket::GiveUp() {
  if (const std::shared_ptr<LaunchGate> gate = std::move(gate_)) gate->GiveUp(number_);
}

CallOrder::CallOrder(std::function<void()> wake) : gate_(LaunchGate::OfProcess()) {
  gate_->Enter(this, std::move(wake));
}

void CallOrder::Leave() { gate_->Leave(this); }

LaunchTicket CallOrder::Take() { return {gate_, gate_->Take(this)}; }

bool CallOrder::IsNext() const { return gate_->IsNext(this); }

bool CallOrder::IsNext(const LaunchTicket& ticket) const { return gate_->IsNext(this, ticket.number()); }

CudaStream CallOrder::StreamOn(const Device& device) const { return gate_->StreamOn(device); }

void CallOrder::FollowOthers(const Device& device, const void* who, CudaStream stream) const {
  gate_->FollowLast(device, who, stream);
}

void CallOrder::Launched(Device* device, const void* who, CudaStream stream) {
  gate_->SetLast(device, this, who, stream);
}

void CallOrder::StartAfresh() {
  auto fresh = std::make_shared<LaunchGate>();
  fresh->Replace(std::move(LaunchGate::OfProcess()));
  LaunchGate::OfProcess() = std::move(fresh);
}

}  // namespace hvd
