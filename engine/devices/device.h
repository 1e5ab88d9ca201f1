// SPDX-License-Identifier: Apache-2.0
// One GPU as this process uses it: the framework's own (primary) context, streams of ours in it, events, and kernels.
// Processes take turns on a GPU's processors, and changing over takes more than 0.1 ms; its copy engines, which move
// bytes from and to the host, serve all of them at once. A stream that waits gives its process's turn away, even if
// others of the process have work: so what can be put on the caller's own stream is, where nothing waits for nothing.
// Nothing here waits for the device but where its name says so. What fails throws DeviceError, with the driver's words.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/types.h"
#include "devices/cuda.h"
#include "devices/tasks.h"

namespace hvd {

class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Device {
 public:
  // The context is the framework's, which lives as long as the process does. Slow; the kernels are not loaded yet.
  Device(const Cuda* cuda, int ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int ordinal() const { return ordinal_; }
  const std::string& name() const { return name_; }
  const CudaUuid& uuid() const { return uuid_; }
  // Processes take no turns: the driver's service for that (MPS) runs their work side by side.
  bool runs_together() const { return runs_together_; }
  const Cuda& cuda() const { return *cuda_; }
  CudaStream kernels() const { return kernels_; }
  CudaStream copies() const { return copies_; }  // from and to the host
  // Of messages. What is put there is ready, so that it waits for nothing; and nobody waits for it with the rest.
  CudaStream messages() const { return messages_; }
  // Whether nothing is under way there.
  bool IsIdle(CudaStream stream) const { return cuda_->stream_query(stream) == kCudaSuccess; }
  // All that an operation has put on this stream, ours or a caller's, is there now.
  void Launched(CudaStream stream);
  // What is put on the stream next waits for all that was launched on others but messages.
  void LetWait(CudaStream stream);
  // Kernels of one communicator that run beside those of another may wait for each other in a circle: what `who` puts
  // on the stream next comes after all of ours, unless the last was of its own. Asked by one thread.
  void FollowOthers(const void* who, CudaStream stream);
  // Whether something of ours is still to be done.
  bool IsBusy();
  // Waits until nothing is, or until then; whether nothing is.
  bool AwaitIdle(std::chrono::steady_clock::time_point until);
  // A device that never ends its work would let whoever frees memory wait without end: from here on all that we have
  // there is left to the end of the process.
  void Abandon() { abandoned_.store(true); }
  bool abandoned() const { return abandoned_.load(); }
  // Compiled by the driver for this device the first time, which may take seconds.
  void LoadKernels();
  bool has_kernels() const { return module_.load(std::memory_order_acquire) != nullptr; }

  // While it lives, this thread's calls are about this device. A graph that another thread captures forbids calls that
  // it might miss, from all threads; ours are none of its business.
  class Scope {
   public:
    explicit Scope(const Device& device) : cuda_(*device.cuda_) {
      device.Check(cuda_.context_push(device.context_), "use");
      cuda_.capture_mode(&capture_mode_);
    }
    ~Scope() {
      cuda_.capture_mode(&capture_mode_);
      CudaContext before;
      cuda_.context_pop(&before);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const Cuda& cuda_;
    int capture_mode_ = kCudaCaptureRelaxed;  // then what it was before
  };

  // Throws unless `result` is success: "could not `what` GPU 0 (...)".
  void Check(int result, const char* what) const;

  // All of these want a Scope.

  // An event that was recorded on `stream`: what was put there before. To be given back when all who wait for it have
  // been told to.
  CudaEvent Mark(CudaStream stream);
  void GiveBack(CudaEvent event);
  void WaitFor(CudaEvent event, CudaStream stream) const {
    Check(cuda_->stream_wait_event(stream, event, 0), "order work on");
  }
  void Copy(const CopyTask& task, CudaStream stream) const;
  void Reduce(DType dtype, const ReduceTask& task, CudaStream stream) const;
  void Average(DType dtype, const AverageTask& task, CudaStream stream) const;  // of kNarrowIntegers
  void Zero(CudaAddress address, size_t bytes, CudaStream stream) const;
  // Between a tensor and pinned memory of the host, by the copy engines.
  void CopyDown(void* to, CudaAddress from, size_t bytes, CudaStream stream) const {
    Check(cuda_->copy_down(to, from, bytes, stream), "copy from");
  }
  void CopyUp(CudaAddress to, const void* from, size_t bytes, CudaStream stream) const;
  void CopyOn(CudaAddress to, CudaAddress from, size_t bytes, CudaStream stream) const {
    Check(cuda_->copy_on(to, from, bytes, stream), "copy on");
  }
  CudaAddress Allocate(size_t bytes) const;
  // Of the highest priority: what is put there moves bytes, which others wait for.
  CudaStream NewStream() const;

 private:
  bool PendingOnOthers(CudaStream stream);
  void Launch(CudaFunction function, const void* task, uint64_t bytes, CudaStream stream) const;

  const Cuda* cuda_;
  int ordinal_, device_ = 0;
  std::string name_;
  CudaUuid uuid_{};
  bool runs_together_ = false;
  CudaContext context_ = nullptr;
  CudaStream kernels_ = nullptr, copies_ = nullptr, messages_ = nullptr;
  std::mutex loading_;
  std::atomic<CudaModule> module_{nullptr};  // once all that follows from it is there
  CudaFunction copy_ = nullptr;
  std::array<CudaFunction, kDTypeCount> reduce_{}, average_{};  // averages: of kNarrowIntegers
  unsigned most_blocks_ = 1;
  std::atomic<bool> abandoned_{false};
  const void* last_ = nullptr;  // who asked for FollowOthers
  std::mutex mutex_;            // guards what follows
  std::vector<CudaEvent> events_;
  std::vector<std::pair<CudaStream, CudaEvent>> launched_;  // the last of each stream; a caller's may be gone by now
};

}  // namespace hvd
