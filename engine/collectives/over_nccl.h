// SPDX-License-Identifier: Apache-2.0
// Collectives of tensors on GPUs by NCCL. The NCCL calls depend on the batch alone, so that all members make equal
// calls. A single tensor, or large ones, are passed to NCCL in place. Several small ones, and tensors with factors that
// NCCL does not apply exactly, are copied through one buffer by the engine's own kernels.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "collectives/machine.h"
#include "collectives/on_device.h"
#include "devices/communicator.h"

namespace hvd {

// Where the factors of a reduction are applied.
struct NcclFactors {
  double with_sum = 1.0;  // factor that NCCL applies to the values that it sums
  bool before = false;    // true: a kernel applies the factor before NCCL runs
  bool after = false;     // true: a kernel applies the factor, with the divisor, after NCCL has run
};
NcclFactors FactorsFor(const Reduction& reduction);

// Reductions or broadcasts of a batch.
struct NcclWork {
  DeviceParts parts;        // parts that are equal on all members except for their addresses
  std::vector<int> owners;  // reducescatter: the member that gets each part
  // For a reducescatter in which all members get equal parts of each tensor: input, output and bytes of each tensor.
  std::vector<DevicePart> even;
  bool through_buffer = false;
  Reduction reduction;
  int root = -1;  // broadcast: the member that sends
};
// Allgathers or alltoalls of a batch.
struct NcclExchange {
  struct Stretch {
    CudaAddress address;
    size_t bytes;
  };
  struct Tensor {
    std::vector<Stretch> sent, received;  // by member
    bool gathers;                         // true for an allgather, false for an alltoall
  };
  std::vector<Tensor> tensors;
};
// Return true if several tensors that are smaller than `border` on average take one call through the buffer, rather
// than one call each.
bool GoesThroughBuffer(size_t tensors, size_t bytes, size_t border);

// Launch the operations; call on the launcher thread inside a Scope.
void LaunchAllreduce(Communicator& communicator, const NcclWork& work, CudaStream stream);
void LaunchReducescatter(Communicator& communicator, const NcclWork& work, CudaStream stream);
void LaunchBroadcast(Communicator& communicator, const NcclWork& work, CudaStream stream);
void LaunchExchange(Communicator& communicator, const NcclExchange& exchange, CudaStream stream);

// Work that the launcher thread puts on a stream for a batch, one piece after the other. Once this object is destroyed,
// work that has not begun leaves the callers' tensors untouched.
class NcclLaunches {
 public:
  using Work = std::function<void(Communicator& communicator, CudaStream stream)>;
  NcclLaunches(Devices* devices, std::shared_ptr<Communicator> communicator);
  ~NcclLaunches();
  NcclLaunches(const NcclLaunches&) = delete;
  NcclLaunches& operator=(const NcclLaunches&) = delete;

  // Queue `work`. On success the launcher thread calls `launched` next, inside a Scope.
  void Put(DeviceOrder order, Work work, std::function<void()> launched = nullptr);
  bool under_way() const { return job_ != nullptr; }
  // Return true once the queued work is launched. If it failed, throw DeviceError with NCCL's text after a delay, so
  // that the engine can report a lost rank first.
  bool IsOver();

 private:
  Devices* devices_;
  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<std::atomic<bool>> revoked_;
  std::shared_ptr<DeviceWorker::Job> job_;
  std::chrono::steady_clock::time_point failed_{};
};

// State machine that is done once its work is launched.
class NcclMachine : public Machine {
 public:
  NcclMachine(Devices* devices, std::shared_ptr<Communicator> communicator, DeviceOrder order, NcclLaunches::Work work);
  Step Advance() override;

 private:
  NcclLaunches launches_;
  DeviceOrder order_;
  NcclLaunches::Work work_;
};

}  // namespace hvd
