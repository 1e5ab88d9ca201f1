// SPDX-License-Identifier: Apache-2.0
// The GPUs that a world's tensors lie on, made when the first of them comes; and what all process sets share there.
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

// What was put on a stream before a moment; given back to its device with the last that holds it.
class DeviceMark {
 public:
  DeviceMark(Device* device, CudaEvent event) : device_(device), event_(event) {}
  ~DeviceMark() { device_->GiveBack(event_); }
  DeviceMark(const DeviceMark&) = delete;
  DeviceMark& operator=(const DeviceMark&) = delete;

  // What is on the device's stream for messages by now. Wants a Scope.
  static std::shared_ptr<DeviceMark> OfMessages(Device* device);

  CudaEvent event() const { return event_; }
  bool IsDone() const;

 private:
  Device* device_;
  CudaEvent event_;
};

using DeviceMarks = std::vector<std::shared_ptr<DeviceMark>>;
// Whether all of them are; those that are, are dropped.
bool AreDone(DeviceMarks* marks);

// Memory that is kept, because making it takes long: of the host, where devices reach it, or of a device.
class BlockPool {
 public:
  enum class Where { kPinned, kOnDevice };
  struct Block {
    std::byte* data = nullptr;  // kOnDevice: an address there
    size_t bytes = 0;
    std::shared_ptr<DeviceMark> busy;  // until what was put on a stream before is done
    Device* device = nullptr;
  };

  explicit BlockPool(Where where) : where_(where) {}
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // No data: there is none to spare.
  Block TakeSpare(const Device* device, size_t bytes);
  // May wait for the device: not for whoever drives the engine.
  Block Take(Device* device, size_t bytes);
  void GiveBack(Block block);
  // The same where nobody knows what the device still does with it.
  void Discard(Block block);

 private:
  void Trim();
  void Free(Block* block) const;

  Where where_;
  std::mutex mutex_;
  std::vector<Block> spare_, discarded_;
};

// The setting gpu_transport.
enum GpuTransport : int32_t { kGpuAuto = 0, kGpuIpc = 1, kGpuStaged = 2, kGpuNccl = 3, kGpuOwn = 4 };

class Devices {
 public:
  explicit Devices(std::function<void()> wake) : wake_(std::move(wake)) {}
  ~Devices();
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  // Any thread. Throws DeviceError.
  Device* Use(int ordinal);
  // The same for a number that another process has for a device; the first here, if there is none of that number.
  Device* UseIfThere(int ordinal);
  Device* last_used();  // null: none so far
  DeviceWorker& worker();
  DeviceWorker& launcher();  // of what goes through NCCL; see communicator.h
  BlockPool& pinned() { return pinned_; }
  BlockPool& outputs() { return outputs_; }  // results whose memory the engine allocates
  DeviceTimes& times() { return times_; }
  DeviceRegions& regions() { return regions_; }
  // NCCL launches in the order of calls, with other worlds of the process that do so; before anything is launched.
  void LaunchByCalls() {
    calls_ = std::make_unique<CallOrder>(wake_);
    prompt_calls_ = std::make_unique<CallOrder>(wake_);
  }
  CallOrder* calls() const { return calls_.get(); }                // null: it does not
  CallOrder* prompt_calls() const { return prompt_calls_.get(); }  // of what is launched unagreed; likewise
  // Whether the world may launch unagreed, and where: known since its members have met. Any thread.
  void SettlePrompt(Device* device) {
    prompt_device_.store(device);
    prompt_settled_.store(true);
  }
  bool prompt_settled() const { return prompt_settled_.load(); }
  Device* prompt_device() const { return prompt_device_.load(); }  // null: it may not
  LaunchWatch& watch() { return watch_; }
  GpuSharing& sharing() { return sharing_; }
  // What is on the stream of a framework by now: tensors that are submitted next are ready when it is done. Null: that
  // is so already.
  std::shared_ptr<DeviceMark> MarkReady(int ordinal, uint64_t stream);
  // Lets the stream wait, not the caller, for all that was launched so far.
  void LetWait(int ordinal, uint64_t stream);
  // After all that was launched so far, on the stream; then the block is given back.
  void CopyOutput(BlockPool::Block block, CudaAddress to, size_t bytes, uint64_t stream);
  // Whether they are done in time with all that was launched, as far as they ever will be.
  bool AwaitIdle(std::chrono::steady_clock::time_point until);
  // The same; those that are not in time are abandoned.
  void Drain(std::chrono::steady_clock::time_point until);
  // No job is begun any more; one that is under way is waited for.
  void Close();

 private:
  std::vector<Device*> Used();

  std::function<void()> wake_;
  std::mutex mutex_;  // guards what follows
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
