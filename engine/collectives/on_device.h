// SPDX-License-Identifier: Apache-2.0
// Collectives on device memory that all members can access. Each member fills a slot of its arena there and copies what
// it needs from all members' slots. No host waits for the device: a state machine is done when all its work is
// launched, on the caller's stream if all tensors share one.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "collectives/device_slots.h"
#include "collectives/machine.h"
#include "devices/devices.h"
#include "devices/link.h"

namespace hvd {

// Tensor, or a part of one, and its offset in the run of its batch. Offsets are multiples of kUnit, so that all
// members' runs have equal layouts and whole units are moved.
struct DevicePart {
  CudaAddress input = 0;   // 0: this member has joined and contributes zeros
  CudaAddress output = 0;  // 0: this member does not want the result
  size_t bytes = 0;
  size_t begin = 0;
};

class DeviceParts {
 public:
  void Add(CudaAddress input, CudaAddress output, size_t bytes);
  // Add a tensor at a given offset of the run; call in ascending order of offsets.
  void AddAt(size_t begin, CudaAddress tensor, size_t bytes);
  size_t size() const { return size_; }
  const std::vector<DevicePart>& all() const { return parts_; }
  // Gather copies the tensors of [begin, end) to a run at `flat`, and Scatter copies them back.
  void Gather(const Device& device, size_t begin, size_t end, CudaAddress flat, CudaStream stream) const;
  void Scatter(const Device& device, size_t begin, size_t end, CudaAddress flat, CudaStream stream) const;
  // Copy all tensors to a run in pinned host memory, or back.
  void CopyDown(const Device& device, std::byte* flat, CudaStream stream) const;
  void CopyUp(const Device& device, const std::byte* flat, CudaStream stream) const;
  // Reduce into the outputs of [begin, end). sources[j] is the address of byte `begin` of member j's run. `targets` are
  // the corresponding addresses in other runs that receive the results too.
  void Reduce(const Device& device, const Reduction& reduction, size_t begin, size_t end,
              const std::vector<CudaAddress>& sources, CudaStream stream,
              const std::vector<CudaAddress>& targets = {}) const;
  // Divide the sums of [begin, end), which lie at `sums` as Reduction::SumDType(), and store the averages in the
  // outputs.
  void NarrowAverages(const Device& device, const Reduction& reduction, size_t begin, size_t end, CudaAddress sums,
                      CudaStream stream) const;

 private:
  // Call launch(segments, count, begin, end) for groups of parts that fit into one launch.
  template <typename Launch>
  void InLaunches(size_t begin, size_t end, CudaAddress DevicePart::* side, Launch launch) const;

  std::vector<DevicePart> parts_;
  size_t size_ = 0;
};

size_t LongestOf(const std::vector<DeviceParts>& runs);
// Sum runs of `bytes` bytes, or widen a single one, into a run of Reduction::SumDType() at `sums`.
void WidenSum(const Device& device, const Reduction& reduction, size_t bytes, const std::vector<CudaAddress>& sources,
              CudaAddress sums, CudaStream stream);

// Setup negotiation of a set's members on one device, once for each set. Each member reports how its memory can be
// reached, maps the memory of the others, and learns whether all succeeded.
class DeviceMeeting {
 public:
  DeviceMeeting(Devices* devices, Device* device, Lane* lane, size_t slot_bytes);
  static bool HasRoom(const Lane& lane);
  // Make progress. After kDone, either `link` exists or `why_not` is the reason; the result is equal on all members.
  Machine::Step Advance();
  const std::shared_ptr<DeviceLink>& link() const { return link_; }
  DeviceSlots* slots() const { return slots_.get(); }
  const std::string& why_not() const { return why_not_; }
  // Wait until the others have stopped reading this member's memory, before the link is released; some may read later
  // than this member. The members must not start more work. `until` limits the wait, because they may be lost.
  void AwaitOthers(std::chrono::steady_clock::time_point until) const;

 private:
  enum class Stage { kBegin, kOpening, kTelling, kHearing, kMapping, kAnswering, kAgreeing, kOver };
  static std::vector<std::byte*> PagesOf(const Lane& lane);
  bool Hears(size_t bytes);

  Devices* devices_;
  Lane* lane_;
  Stage stage_ = Stage::kBegin;
  std::shared_ptr<DeviceLink> link_;
  std::unique_ptr<DeviceSlots> slots_;  // exists together with the link
  std::shared_ptr<DeviceWorker::Job> job_;
  std::vector<const std::byte*> heard_;
  std::string why_not_;
};

// Stream for the work of a batch, and events that this work must follow.
struct DeviceOrder {
  CudaStream stream = nullptr;
  DeviceMarks after;
};

class DeviceMachine : public Machine {
 public:
  // `size` is the length of the longest run of any member.
  DeviceMachine(std::shared_ptr<DeviceLink> link, DeviceSlots* slots, DeviceParts parts, DeviceOrder order,
                size_t size);
  ~DeviceMachine() override;
  Step Advance() override;

 protected:
  virtual void Fill(size_t begin, size_t end, CudaAddress slot) = 0;
  virtual bool MayTake() const { return slots_.MayRead(); }
  virtual void Take(size_t begin, size_t end) = 0;

  std::shared_ptr<DeviceLink> link_;
  DeviceSlots& slots_;
  DeviceParts parts_;
  CudaStream stream_;

 private:
  size_t EndOf(size_t begin) const { return std::min(size_, begin + link_->slot_bytes()); }

  size_t size_;
  DeviceMarks ready_;
  // bytes of the run for which the work that fills slots, and that takes results, is launched
  size_t filled_ = 0, taken_ = 0;
};

// Allreduce or reducescatter. A member without an output for a part skips that part.
class DeviceReduce : public DeviceMachine {
 public:
  DeviceReduce(std::shared_ptr<DeviceLink> link, DeviceSlots* slots, DeviceParts parts, DeviceOrder order,
               const Reduction& reduction);

 private:
  void Fill(size_t begin, size_t end, CudaAddress slot) override;
  void Take(size_t begin, size_t end) override;

  Reduction reduction_;
};

// Tensors of an allreduce at equal offsets in one region of each member; such a region serves as a run.
struct DirectRun {
  DeviceParts parts;               // parts of this member's tensors
  std::vector<CudaAddress> bases;  // addresses of the regions, by member
};

// Allreduce of tensors in regions that all members on one device have mapped. Nothing is gathered: when all members are
// ready, one of them sums all tensors in place and stores the results there. Only the flags of the slots are used.
class DeviceDirect : public DeviceMachine {
 public:
  DeviceDirect(std::shared_ptr<DeviceLink> link, DeviceSlots* slots, std::vector<DirectRun> runs, DeviceOrder order,
               const Reduction& reduction);

 private:
  void Fill(size_t begin, size_t end, CudaAddress slot) override;
  bool MayTake() const override;
  void Take(size_t begin, size_t end) override;
  int worker() const { return link_->members() - 1; }  // the member that sums

  std::vector<DirectRun> runs_;
  Reduction reduction_;
};

class DeviceBroadcast : public DeviceMachine {
 public:
  DeviceBroadcast(std::shared_ptr<DeviceLink> link, DeviceSlots* slots, DeviceParts parts, DeviceOrder order, int root)
      : DeviceMachine(std::move(link), slots, parts, std::move(order), parts.size()), root_(root) {}

 private:
  void Fill(size_t begin, size_t end, CudaAddress slot) override;
  void Take(size_t begin, size_t end) override;

  int root_;
};

// Allgather or alltoall. Each member's run has its own destination in the others' outputs.
class DeviceExchange : public DeviceMachine {
 public:
  // from[j] is the run of member j; its outputs are the parts that this member wants.
  DeviceExchange(std::shared_ptr<DeviceLink> link, DeviceSlots* slots, DeviceParts own, std::vector<DeviceParts> from,
                 DeviceOrder order);

 private:
  void Fill(size_t begin, size_t end, CudaAddress slot) override;
  void Take(size_t begin, size_t end) override;

  std::vector<DeviceParts> from_;
};

}  // namespace hvd
