// SPDX-License-Identifier: Apache-2.0
// When a device did what was put on its streams, in times of the steady clock: by events, while a timeline is written.
// Nothing here throws or waits for the device: what cannot be measured is not shown.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "devices/device.h"

namespace hvd {

class DeviceTimes {
 public:
  using Show = std::function<void(int ordinal, const std::string& name, int64_t began_ns, int64_t ended_ns)>;

  ~DeviceTimes();

  void set_on(bool on) { on_.store(on, std::memory_order_relaxed); }
  bool on() const { return on_.load(std::memory_order_relaxed); }

  // Of what is put on a stream between the two; both want a Scope. Null: it is not measured.
  CudaEvent Begin(Device* device, CudaStream stream);
  void End(Device* device, CudaEvent began, CudaStream stream, std::string name);
  // Instead of End.
  void Drop(Device* device, CudaEvent began);
  // What the devices have done by now. Any thread.
  void Collect(const Show& show);
  bool empty();

 private:
  struct Pending {
    Device* device;
    CudaEvent began, ended;
    std::string name;
  };
  struct Anchor {  // the moment of an event, by which those of others are told
    CudaEvent event = nullptr;
    int64_t at_ns = 0;
  };

  CudaEvent Record(Device* device, CudaStream stream);
  void RenewAnchor(Device* device);
  void Tell(const Pending& pending, const Show& show);

  std::atomic<bool> on_{false};
  std::mutex mutex_;  // guards what follows
  std::map<Device*, Anchor> anchors_;
  std::map<Device*, std::vector<CudaEvent>> spare_;
  std::vector<Pending> pending_;
};

}  // namespace hvd
