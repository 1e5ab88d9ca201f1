// SPDX-License-Identifier: Apache-2.0
// GPUs that hold a world's tensors, created when the first tensor arrives, and the resources that all process sets
// share there.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "devices/device.h"
#include "devices/device_times.h"
#include "devices/gpu_sharing.h"
#include "devices/launch_gate.h"
#include "devices/launch_watch.h"
#include "devices/region.h"
#include "devices/worker.h"

namespace hvd {

// Event after all work that was on a device's stream when the event was recorded. The last owner returns it to its
// device.
class DeviceMark {
 public:
  DeviceMark(Device* device, CudaEvent event) : device_(device), event_(event) {}
  ~DeviceMark() { device_->GiveBack(event_); }
  DeviceMark(const DeviceMark&) = delete;
  DeviceMark& operator=(const DeviceMark&) = delete;

  // Return an event after the current work on the device's stream for messages. Call inside a Scope.
  static std::shared_ptr<DeviceMark> OfMessages(Device* device);

  CudaEvent event() const { return event_; }
  bool IsDone() const;

 private:
  Device* device_;
  CudaEvent event_;
};

using DeviceMarks = std::vector<std::shared_ptr<DeviceMark>>;
// Return true if all events are done; remove those that are.
bool AreDone(DeviceMarks* marks);

// Pool of memory that is kept because allocating it is slow: pinned host memory that devices can access, or device
// memory.
class BlockPool {
 public:
  enum class Where { kPinned, kOnDevice };
  struct Block {
    std::byte* data = nullptr;  // for kOnDevice, `data` is an address on the device
    size_t bytes = 0;
    std::shared_ptr<DeviceMark> busy;  // if set, the block may be reused only after this event
    Device* device = nullptr;
  };

  explicit BlockPool(Where where) : where_(where) {}
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Return a block that is ready for reuse, or one without data if there is none.
  Block TakeSpare(const Device* device, size_t bytes);
  // Return a block; this may wait for the device, so the thread that drives the engine must not call it.
  Block Take(Device* device, size_t bytes);
  void GiveBack(Block block);
  // Give back a block that the device may still be using for an unknown time; it is freed later instead of reused.
  void Discard(Block block);

 private:
  void Trim();
  void Free(Block* block) const;

  Where where_;
  std::mutex mutex_;
  std::vector<Block> spare_, discarded_;
};

// Values of the setting gpu_transport.
enum GpuTransport : int32_t { kGpuAuto = 0, kGpuIpc = 1, kGpuStaged = 2, kGpuNccl = 3, kGpuOwn = 4 };

class Devices {
 public:
  explicit Devices(std::function<void()> wake) : wake_(std::move(wake)) {}
  ~Devices();
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  // Return the device with this number. Any thread may call this. Throws DeviceError.
  Device* Use(int ordinal);
  // Return the device with a number that another process reported, or device 0 if this process has no such device.
  Device* UseIfThere(int ordinal);
  Device* last_used();  // returns null if no device has been used
  DeviceWorker& worker();
  DeviceWorker& launcher();  // thread for NCCL calls; see communicator.h
  BlockPool& pinned() { return pinned_; }
  BlockPool& outputs() { return outputs_; }  // memory for results that the engine allocates
  DeviceTimes& times() { return times_; }
  DeviceRegions& regions() { return regions_; }
  // Launch NCCL operations in the order of the program's calls, together with the other worlds of the process that do
  // so. Call before anything is launched.
  void LaunchByCalls() {
    calls_ = std::make_unique<CallOrder>(wake_);
    prompt_calls_ = std::make_unique<CallOrder>(wake_);
  }
  CallOrder* calls() const { return calls_.get(); }  // returns null unless LaunchByCalls was called
  // Return the order of operations that are launched without negotiation, or null unless LaunchByCalls was called.
  CallOrder* prompt_calls() const { return prompt_calls_.get(); }
  // Set the device on which the world may launch without negotiation, or null. The setup negotiation decides it. Any
  // thread may call this.
  void SettlePrompt(Device* device) {
    prompt_device_.store(device);
    prompt_settled_.store(true);
  }
  bool prompt_settled() const { return prompt_settled_.load(); }
  // Return the device for launches without negotiation, or null if the world may not do that.
  Device* prompt_device() const { return prompt_device_.load(); }
  LaunchWatch& watch() { return watch_; }
  GpuSharing& sharing() { return sharing_; }
  // Return an event after the current work on a framework's stream, or null if no work is pending there. Tensors that
  // are submitted next are ready once the event is done.
  std::shared_ptr<DeviceMark> MarkReady(int ordinal, uint64_t stream);
  // Make the stream wait, and not the caller, for everything launched so far.
  void LetWait(int ordinal, uint64_t stream);
  // Copy a result on the stream after everything launched so far, then return the block to its pool.
  void CopyOutput(BlockPool::Block block, CudaAddress to, size_t bytes, uint64_t stream);
  // Return false if some device has unfinished work at `until`. A device that has failed counts as finished.
  bool AwaitIdle(std::chrono::steady_clock::time_point until);
  // Wait for all devices, and abandon those that have unfinished work at `until`.
  void Drain(std::chrono::steady_clock::time_point until);
  // Start no more jobs, and wait for the job in progress.
  void Close();

 private:
  std::vector<Device*> Used();

  std::function<void()> wake_;
  std::mutex mutex_;  // guards the members below
  std::map<int, std::unique_ptr<Device>> devices_;
  Device* last_used_ = nullptr;
  BlockPool pinned_{BlockPool::Where::kPinned};
  DeviceTimes times_;
  BlockPool outputs_{BlockPool::Where::kOnDevice};
  std::unique_ptr<CallOrder> calls_, prompt_calls_;
  std::atomic<Device*> prompt_device_{nullptr};
  std::atomic<bool> prompt_settled_{false};
  LaunchWatch watch_;
  GpuSharing sharing_;
  DeviceRegions regions_;
  std::unique_ptr<DeviceWorker> worker_, launcher_;
};

}  // namespace hvd
