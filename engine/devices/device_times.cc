// SPDX-License-Identifier: Apache-2.0
#include "devices/device_times.h"

#include <chrono>
#include <utility>

namespace hvd {
namespace {

// Lifetime of an anchor. The driver returns distances between events as float, which is precise enough over this time.
constexpr int64_t kAnchorLasts = 5'000'000'000;
constexpr int64_t kAnchorTakes = 20'000'000;  // maximum time to wait for an anchor's event, on a busy host
constexpr size_t kMostPending = 4096;

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

DeviceTimes::~DeviceTimes() {
  for (Pending& pending : pending_) {
    spare_[pending.device].push_back(pending.began);
    spare_[pending.device].push_back(pending.ended);
  }
  for (auto& [device, anchor] : anchors_) spare_[device].push_back(anchor.event);
  for (auto& [device, events] : spare_) {
    if (device->abandoned()) continue;
    try {
      const Device::Scope scope(*device);
      for (CudaEvent event : events) {
        if (event) device->cuda().event_destroy(event);
      }
    } catch (const DeviceError&) {
    }
  }
}

// The caller holds the lock.
CudaEvent DeviceTimes::Record(Device* device, CudaStream stream) {
  std::vector<CudaEvent>& spare = spare_[device];
  CudaEvent event = nullptr;
  if (!spare.empty()) {
    event = spare.back();
    spare.pop_back();
  } else if (device->cuda().event_create(&event, kCudaEventTimed) != kCudaSuccess) {
    return nullptr;
  }
  if (device->cuda().event_record(event, stream) == kCudaSuccess) return event;
  spare.push_back(event);
  return nullptr;
}

// Record a new anchor on an idle stream, which reaches it at once.
void DeviceTimes::RenewAnchor(Device* device) {
  if (!device->IsIdle(device->copies())) return;
  const CudaEvent event = Record(device, device->copies());
  if (!event) return;
  Anchor& anchor = anchors_[device];
  const int64_t before = Now();
  int64_t now = before;
  while (device->cuda().event_query(event) == kCudaNotReady && now < before + kAnchorTakes) now = Now();
  if (device->cuda().event_query(event) != kCudaSuccess) {
    spare_[device].push_back(event);
    return;
  }
  if (anchor.event) spare_[device].push_back(anchor.event);
  anchor = {event, now};
}

CudaEvent DeviceTimes::Begin(Device* device, CudaStream stream) {
  if (!on()) return nullptr;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = anchors_.find(device);
  if (found == anchors_.end() || Now() > found->second.at_ns + kAnchorLasts) RenewAnchor(device);
  const bool known = anchors_.count(device) && anchors_[device].event && pending_.size() < kMostPending;
  return known ? Record(device, stream) : nullptr;
}

void DeviceTimes::End(Device* device, CudaEvent began, CudaStream stream, std::string name) {
  if (!began) return;
  std::lock_guard<std::mutex> lock(mutex_);
  const CudaEvent ended = Record(device, stream);
  if (!ended) return spare_[device].push_back(began);
  pending_.push_back({device, began, ended, std::move(name)});
}

void DeviceTimes::Drop(Device* device, CudaEvent began) {
  if (!began) return;
  std::lock_guard<std::mutex> lock(mutex_);
  spare_[device].push_back(began);
}

bool DeviceTimes::empty() {
  std::lock_guard<std::mutex> lock(mutex_);
  return pending_.empty();
}

void DeviceTimes::Collect(const Show& show) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Pending> left;
  for (Pending& pending : pending_) {
    try {
      const Device::Scope scope(*pending.device);
      if (pending.device->cuda().event_query(pending.ended) == kCudaNotReady) {
        left.push_back(std::move(pending));
        continue;
      }
      Tell(pending, show);
    } catch (const DeviceError&) {
    }
    spare_[pending.device].push_back(pending.began);
    spare_[pending.device].push_back(pending.ended);
  }
  pending_ = std::move(left);
}

void DeviceTimes::Tell(const Pending& pending, const Show& show) {
  const Anchor& anchor = anchors_[pending.device];
  float began_ms = 0, ended_ms = 0;
  const Cuda& cuda = pending.device->cuda();
  if (cuda.event_elapsed(&began_ms, anchor.event, pending.began) != kCudaSuccess) return;
  if (cuda.event_elapsed(&ended_ms, anchor.event, pending.ended) != kCudaSuccess) return;
  const auto at = [&](float ms) { return anchor.at_ns + static_cast<int64_t>(static_cast<double>(ms) * 1e6); };
  show(pending.device->ordinal(), pending.name, at(began_ms), at(ended_ms));
}

}  // namespace hvd
