// SPDX-License-Identifier: Apache-2.0
// One GPU as this process uses it: the framework's own (primary) context, the engine's streams in it, events and
// kernels. Processes take time slices on a GPU's processors, and a switch takes more than 0.1 ms; the copy engines,
// which move bytes to and from the host, serve all processes at once. A stream that waits gives up the time slice of
// its process, even if other streams of the process have work. So work is put on the caller's own stream where
// possible. Only methods whose name says so wait for the device. Failures throw DeviceError with the driver's text.
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
  // Use the framework's context, which lives as long as the process. This is slow; it does not load the kernels.
  Device(const Cuda* cuda, int ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int ordinal() const { return ordinal_; }
  const std::string& name() const { return name_; }
  const CudaUuid& uuid() const { return uuid_; }
  // Return true if the driver's multi-process service (MPS) runs the work of several processes side by side, without
  // time slices.
  bool runs_together() const { return runs_together_; }
  const Cuda& cuda() const { return *cuda_; }
  CudaStream kernels() const { return kernels_; }
  CudaStream copies() const { return copies_; }  // stream for copies to and from the host
  // Return the stream for messages. Work put there is ready, so it waits for nothing, and LetWait does not wait for it.
  CudaStream messages() const { return messages_; }
  // Return true if the stream has no pending work.
  bool IsIdle(CudaStream stream) const { return cuda_->stream_query(stream) == kCudaSuccess; }
  // Record that all work of an operation has been put on `stream`, which is the engine's or a caller's.
  void Launched(CudaStream stream);
  // Let the work that is put on `stream` next wait for everything launched on other streams, except for messages.
  void LetWait(CudaStream stream);
  // Let the work that `who` puts on `stream` next follow all work of the engine, unless the last caller was `who` too.
  // Kernels of different communicators that run side by side may wait for each other in a cycle. Only one thread calls
  // this.
  void FollowOthers(const void* who, CudaStream stream);
  // Return true if work of the engine is pending.
  bool IsBusy();
  // Wait until no work is pending, or until `until`; return true if none is.
  bool AwaitIdle(std::chrono::steady_clock::time_point until);
  // Leave all memory on the device allocated until the process ends, because freeing it would wait indefinitely for a
  // device that does not finish its work.
  void Abandon() { abandoned_.store(true); }
  bool abandoned() const { return abandoned_.load(); }
  // Load the kernels. The first time, the driver compiles them for this device, which may take seconds.
  void LoadKernels();
  bool has_kernels() const { return module_.load(std::memory_order_acquire) != nullptr; }

  // Scope in which this thread's calls refer to this device. It also relaxes the thread's stream-capture mode: while
  // another thread captures a graph, calls that the graph might miss are forbidden on all threads, but the engine's
  // calls do not belong to any graph.
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
    int capture_mode_ = kCudaCaptureRelaxed;  // holds the previous mode after the exchange
  };

  // Throw unless `result` is success. The text is e.g. "could not `what` GPU 0 (...)".
  void Check(int result, const char* what) const;

  // Every method below must be called inside a Scope.

  // Record an event on `stream`, which covers all work that was put there before. Call GiveBack once all waits for it
  // have been enqueued.
  CudaEvent Mark(CudaStream stream);
  void GiveBack(CudaEvent event);
  void WaitFor(CudaEvent event, CudaStream stream) const {
    Check(cuda_->stream_wait_event(stream, event, 0), "order work on");
  }
  void Copy(const CopyTask& task, CudaStream stream) const;
  void Reduce(DType dtype, const ReduceTask& task, CudaStream stream) const;
  // supports only the types in kNarrowIntegers
  void Average(DType dtype, const AverageTask& task, CudaStream stream) const;
  void Zero(CudaAddress address, size_t bytes, CudaStream stream) const;
  // Copy between a tensor and pinned host memory with the copy engines.
  void CopyDown(void* to, CudaAddress from, size_t bytes, CudaStream stream) const {
    Check(cuda_->copy_down(to, from, bytes, stream), "copy from");
  }
  void CopyUp(CudaAddress to, const void* from, size_t bytes, CudaStream stream) const;
  void CopyOn(CudaAddress to, CudaAddress from, size_t bytes, CudaStream stream) const {
    Check(cuda_->copy_on(to, from, bytes, stream), "copy on");
  }
  CudaAddress Allocate(size_t bytes) const;
  // Create a stream of the highest priority, because its work moves bytes that others wait for.
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
  std::atomic<CudaModule> module_{nullptr};  // set last, so that the functions below are valid once it is set
  CudaFunction copy_ = nullptr;
  std::array<CudaFunction, kDTypeCount> reduce_{}, average_{};  // average_ is set for kNarrowIntegers only
  unsigned most_blocks_ = 1;
  std::atomic<bool> abandoned_{false};
  const void* last_ = nullptr;  // the last caller of FollowOthers
  std::mutex mutex_;            // guards the members below
  std::vector<CudaEvent> events_;
  // Last event of each stream; a caller's stream may no longer exist.
  std::vector<std::pair<CudaStream, CudaEvent>> launched_;
};

}  // namespace hvd
