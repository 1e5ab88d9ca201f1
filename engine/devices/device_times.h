// SPDX-License-Identifier: Apache-2.0
// Times at which a device did the work on its streams, on the steady clock, measured by events while a timeline is
// written. Nothing here throws or waits for the device; work that cannot be measured is not shown.
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

  // Begin and End measure the work that is put on a stream between them; call both inside a Scope. Begin returns null
  // if the work is not measured.
  CudaEvent Begin(Device* device, CudaStream stream);
  void End(Device* device, CudaEvent began, CudaStream stream, std::string name);
  // Discard the measurement; call instead of End.
  void Drop(Device* device, CudaEvent began);
  // Pass the work that the devices have finished so far to `show`. Any thread may call this.
  void Collect(const Show& show);
  bool empty();

 private:
  struct Pending {
    Device* device;
    CudaEvent began, ended;
    std::string name;
  };
  struct Anchor {  // event whose time is known; the times of other events are computed from it
    CudaEvent event = nullptr;
    int64_t at_ns = 0;
  };

  CudaEvent Record(Device* device, CudaStream stream);
  void RenewAnchor(Device* device);
  void Tell(const Pending& pending, const Show& show);

  std::atomic<bool> on_{false};
  std::mutex mutex_;  // guards the members below
  std::map<Device*, Anchor> anchors_;
  std::map<Device*, std::vector<CudaEvent>> spare_;
  std::vector<Pending> pending_;
};

}  // namespace hvd
