// SPDX-License-Identifier: Apache-2.0
// Collectives of tensors on GPUs by NCCL. Which calls are made follows from the batch alone, so that all members make
// the same: one tensor, or large ones, are given to NCCL as they lie; several that are not, and those with factors that
// NCCL does not apply exactly, go through one buffer by our own kernels.
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

// Where a reduction's factors are applied.
struct NcclFactors {
  double with_sum = 1.0;  // by NCCL itself, to what it sums
  bool before = false;    // by a kernel
  bool after = false;     // by a kernel, with the divisor
};
NcclFactors FactorsFor(const Reduction& reduction);

// What a batch asks for.
struct NcclWork {
  DeviceParts parts;             // all members' look alike but for the addresses
  std::vector<int> owners;       // reducescatter: the member that gets the part
  std::vector<DevicePart> even;  // likewise, if all members get the same of each tensor: its input, output, their bytes
  bool through_buffer = false;
  Reduction reduction;
  int root = -1;  // broadcast: the member that gives
};
// What an allgather or alltoall asks for.
struct NcclExchange {
  struct Stretch {
    CudaAddress address;
    size_t bytes;
  };
  struct Tensor {
    std::vector<Stretch> sent, received;  // by member
    bool gathers;                         // all get the same
  };
  std::vector<Tensor> tensors;
};
// One call for all of them, if they are smaller than `border` on average, or one for each.
bool GoesThroughBuffer(size_t tensors, size_t bytes, size_t border);

// All of these launch, on the launcher's thread, with a Scope.
void LaunchAllreduce(Communicator& communicator, const NcclWork& work, CudaStream stream);
void LaunchReducescatter(Communicator& communicator, const NcclWork& work, CudaStream stream);
void LaunchBroadcast(Communicator& communicator, const NcclWork& work, CudaStream stream);
void LaunchExchange(Communicator& communicator, const NcclExchange& exchange, CudaStream stream);

// What the launcher puts on a stream for a batch, one piece of work after the other. What has not begun when this goes
// lets the callers' tensors alone.
class NcclLaunches {
 public:
  using Work = std::function<void(Communicator& communicator, CudaStream stream)>;
  NcclLaunches(Devices* devices, std::shared_ptr<Communicator> communicator);
  ~NcclLaunches();
  NcclLaunches(const NcclLaunches&) = delete;
  NcclLaunches& operator=(const NcclLaunches&) = delete;

  // `launched`: called next, by the launcher with a Scope, if all went well.
  void Put(DeviceOrder order, Work work, std::function<void()> launched = nullptr);
  bool under_way() const { return job_ != nullptr; }
  // Whether it no longer is. Throws DeviceError, with NCCL's words, a while after it went wrong: whoever is lost is
  // told of first.
  bool IsOver();

 private:
  Devices* devices_;
  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<std::atomic<bool>> revoked_;
  std::shared_ptr<DeviceWorker::Job> job_;
  std::chrono::steady_clock::time_point failed_{};
};

// Done when the work is launched.
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
