// SPDX-License-Identifier: Apache-2.0
// Collectives of members some of which share GPUs. On each GPU every member fills a slot of its arena there; the first
// of them, which leads, makes one of all of theirs, exchanges it by NCCL with the leaders of the other GPUs, and leaves
// the result in a slot of its own, from which all members of its GPU take what they want. No host waits for a device: a
// machine is done when all of its work is launched, on the caller's stream if all tensors have the same.
//
// A stream waits for members of its GPU only for what they have launched. NCCL waits for what other leaders may still
// have to launch: so all members, not only those that lead, begin a batch when it is its turn, and nothing of a later
// turn before all of it is launched.
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
  // `size`: of the longest run of any member; `chunk`: how much of it goes at once.
  AcrossGpus(Devices* devices, const NcclMeeting& meeting, DeviceParts parts, DeviceOrder order, size_t size,
             size_t chunk);
  ~AcrossGpus() override;
  Step Advance() override;

 protected:
  virtual void Fill(size_t begin, size_t end, CudaAddress slot) = 0;
  // The leader: puts together what its GPU contributes; sources: the slots of the members there, in their order.
  virtual void Join(size_t begin, size_t end, const std::vector<CudaAddress>& sources, CudaAddress result) = 0;
  // What it then asks NCCL for, which leaves the result in the same place.
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
  NcclLaunches launches_;  // if it leads
  DeviceMarks ready_;
  size_t size_, chunk_;
  size_t begin_ = 0;  // of the present chunk
  Stage stage_ = Stage::kFill;
};

// Also a reducescatter: who has no output for a part leaves it to those who have.
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

// Each member's run has places of its own in the others' outputs. A chunk of the result has the same room for each
// member of each GPU, used or not, because NCCL gathers equal parts.
class AllgatherAcrossGpus : public AcrossGpus {
 public:
  // from[j]: the run of member j, with outputs for what this member wants of it.
  AllgatherAcrossGpus(Devices* devices, const NcclMeeting& meeting, DeviceParts own, std::vector<DeviceParts> from,
                      DeviceOrder order);
  // How much of each member's run goes at once; 0: there is no room for so many.
  static size_t ChunkOf(const NcclMeeting& meeting);

 private:
  void Fill(size_t begin, size_t end, CudaAddress slot) override;
  void Join(size_t begin, size_t end, const std::vector<CudaAddress>& sources, CudaAddress result) override;
  NcclLaunches::Work Exchange(size_t begin, size_t end, CudaAddress result) const override;
  void Take(size_t begin, size_t end, CudaAddress result) override;

  std::vector<DeviceParts> from_;
};

}  // namespace hvd
