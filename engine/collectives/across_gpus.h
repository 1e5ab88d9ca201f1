// SPDX-License-Identifier: Apache-2.0
// Collectives of members some of which share GPUs. On each GPU, every member fills a slot of its arena there. The first
// member on the GPU, its leader, combines these slots into one, exchanges that with the leaders of the other GPUs
// through NCCL, and leaves the result in one of its slots, from which all members on its GPU copy their outputs. No
// host waits for a device: the state machine is done when all its work is launched, on the caller's stream if all
// tensors share one.
//
// A stream waits only for work that members of its GPU have launched already. NCCL, however, also waits for work that
// other leaders have yet to launch. So all members, not only leaders, begin a batch in its launch slot, and begin
// nothing of a later slot before the batch is launched completely.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/nccl_meeting.h"
#include "collectives/on_device.h"
#include "collectives/over_nccl.h"

namespace hvd {

class AcrossGpus : public Machine {
 public:
  // `size` is the length of the longest run of any member, and `chunk` the part of it that is processed at once.
  AcrossGpus(Devices* devices, const NcclMeeting& meeting, DeviceParts parts, DeviceOrder order, size_t size,
             size_t chunk);
  ~AcrossGpus() override;
  Step Advance() override;

 protected:
  virtual void Fill(size_t begin, size_t end, CudaAddress slot) = 0;
  // Combine the contributions of this GPU; called on the leader only. `sources` are the slots of its members, in order.
  virtual void Join(size_t begin, size_t end, const std::vector<CudaAddress>& sources, CudaAddress result) = 0;
  // Return the NCCL operation that the leader launches next; it must leave its result at `result`.
  virtual NcclLaunches::Work Exchange(size_t begin, size_t end, CudaAddress result) const = 0;
  virtual void Take(size_t begin, size_t end, CudaAddress result) = 0;

  const Device& device() const { return link_->device(); }
  bool leads() const { return link_->me() == 0; }

  const GpuLayout& layout_;
  const int me_;
  std::shared_ptr<DeviceLink> link_;
  DeviceParts parts_;
  CudaStream stream_;

 private:
  enum class Stage { kFill, kJoin, kExchange, kTake, kOver };
  bool FillSlot();
  bool JoinSlots();
  bool PassOn();
  bool TakeResult();
  size_t end() const { return std::min(size_, begin_ + chunk_); }

  DeviceSlots& slots_;
  NcclLaunches launches_;  // used by the leader only
  DeviceMarks ready_;
  size_t size_, chunk_;
  size_t begin_ = 0;  // beginning of the current chunk
  Stage stage_ = Stage::kFill;
};

// Allreduce or reducescatter. A member without an output for a part skips that part.
class ReduceAcrossGpus : public AcrossGpus {
 public:
  ReduceAcrossGpus(Devices* devices, const NcclMeeting& meeting, DeviceParts parts, DeviceOrder order,
                   const Reduction& reduction);

 private:
  void Fill(size_t begin, size_t end, CudaAddress slot) override;
  void Join(size_t begin, size_t end, const std::vector<CudaAddress>& sources, CudaAddress result) override;
  NcclLaunches::Work Exchange(size_t begin, size_t end, CudaAddress result) const override;
  void Take(size_t begin, size_t end, CudaAddress result) override;

  Reduction reduction_;
};

class BroadcastAcrossGpus : public AcrossGpus {
 public:
  BroadcastAcrossGpus(Devices* devices, const NcclMeeting& meeting, DeviceParts parts, DeviceOrder order, int root);

 private:
  void Fill(size_t begin, size_t end, CudaAddress slot) override;
  void Join(size_t begin, size_t end, const std::vector<CudaAddress>& sources, CudaAddress result) override;
  NcclLaunches::Work Exchange(size_t begin, size_t end, CudaAddress result) const override;
  void Take(size_t begin, size_t end, CudaAddress result) override;

  int root_;
};

// Allgather in which each member's run has its own destination in the others' outputs. A chunk of the result has equal
// room for each member of each GPU, used or not, because NCCL gathers equal parts.
class AllgatherAcrossGpus : public AcrossGpus {
 public:
  // from[j] is the run of member j; its outputs are the parts that this member wants.
  AllgatherAcrossGpus(Devices* devices, const NcclMeeting& meeting, DeviceParts own, std::vector<DeviceParts> from,
                      DeviceOrder order);
  // Return how much of each member's run is processed at once; 0 if a slot has no room for so many members.
  static size_t ChunkOf(const NcclMeeting& meeting);

 private:
  void Fill(size_t begin, size_t end, CudaAddress slot) override;
  void Join(size_t begin, size_t end, const std::vector<CudaAddress>& sources, CudaAddress result) override;
  NcclLaunches::Work Exchange(size_t begin, size_t end, CudaAddress result) const override;
  void Take(size_t begin, size_t end, CudaAddress result) override;

  std::vector<DeviceParts> from_;
};

}  // namespace hvd
