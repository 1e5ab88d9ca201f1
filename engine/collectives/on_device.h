// SPDX-License-Identifier: Apache-2.0
// Collectives on memory of a device that all members reach. Each fills a slot of its arena there, and takes what it
// wants out of all members' slots. No host waits for the device: a machine is done when all of its work is launched, on
// the caller's stream if all tensors have the same.
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

// A tensor, or a part of one, and where it lies in the flat run of its batch: on a border of kUnit bytes, so that all
// members' runs look alike and whole units are moved.
struct DevicePart {
  CudaAddress input = 0;   // 0: this member has joined, and contributes zeros
  CudaAddress output = 0;  // 0: it does not want the result
  size_t bytes = 0;
  size_t begin = 0;
};

class DeviceParts {
 public:
  void Add(CudaAddress input, CudaAddress output, size_t bytes);
  // Where the run has a place for it already; in the order of places.
  void AddAt(size_t begin, CudaAddress tensor, size_t bytes);
  size_t size() const { return size_; }
  const std::vector<DevicePart>& all() const { return parts_; }
  // Copies from the tensors of [begin, end) to a run at `flat`, and back.
  void Gather(const Device& device, size_t begin, size_t end, CudaAddress flat, CudaStream stream) const;
  void Scatter(const Device& device, size_t begin, size_t end, CudaAddress flat, CudaStream stream) const;
  // The same for all of them and a run in pinned memory of the host.
  void CopyDown(const Device& device, std::byte* flat, CudaStream stream) const;
  void CopyUp(const Device& device, const std::byte* flat, CudaStream stream) const;
  // Into the outputs of [begin, end); sources[j]: where byte `begin` of member j's run lies. `targets`: the same of
  // runs that get the results as well.
  void Reduce(const Device& device, const Reduction& reduction, size_t begin, size_t end,
              const std::vector<CudaAddress>& sources, CudaStream stream,
              const std::vector<CudaAddress>& targets = {}) const;
  // Divides the sums of [begin, end), which lie at `sums` as Reduction::SumDType(), and puts the averages into the
  // outputs.
  void NarrowAverages(const Device& device, const Reduction& reduction, size_t begin, size_t end, CudaAddress sums,
                      CudaStream stream) const;

 private:
  // Calls launch(segments, count, begin, end) for runs of so many parts as one launch takes.
  template <typename Launch>
  void InLaunches(size_t begin, size_t end, CudaAddress DevicePart::* side, Launch launch) const;

  std::vector<DevicePart> parts_;
  size_t size_ = 0;
};

size_t LongestOf(const std::vector<DeviceParts>& runs);
// Sums runs of `bytes` bytes, or widens one, into a run of Reduction::SumDType() at `sums`.
void WidenSum(const Device& device, const Reduction& reduction, size_t bytes, const std::vector<CudaAddress>& sources,
              CudaAddress sums, CudaStream stream);

// The members of a set meet on a device: each tells how it can be reached, maps the others, and hears whether all
// could. Once for each set.
class DeviceMeeting {
 public:
  DeviceMeeting(Devices* devices, Device* device, Lane* lane, size_t slot_bytes);
  static bool HasRoom(const Lane& lane);
  // kDone: `link` is there, or `why_not` says why there is none. All members come to the same.
  Machine::Step Advance();
  const std::shared_ptr<DeviceLink>& link() const { return link_; }
  DeviceSlots* slots() const { return slots_.get(); }
  const std::string& why_not() const { return why_not_; }
  // Before the link goes: others read from this member's memory, some of them later than it reads from theirs. The
  // members take part in nothing more. `until`: not longer than that, for they may be lost.
  void AwaitOthers(std::chrono::steady_clock::time_point until) const;

 private:
  enum class Stage { kBegin, kOpening, kTelling, kHearing, kMapping, kAnswering, kAgreeing, kOver };
  static std::vector<std::byte*> PagesOf(const Lane& lane);
  bool Hears(size_t bytes);

  Devices* devices_;
  Lane* lane_;
  Stage stage_ = Stage::kBegin;
  std::shared_ptr<DeviceLink> link_;
  std::unique_ptr<DeviceSlots> slots_;  // with the link
  std::shared_ptr<DeviceWorker::Job> job_;
  std::vector<const std::byte*> heard_;
  std::string why_not_;
};

// Where the work of a batch goes, and what must be done before.
struct DeviceOrder {
  CudaStream stream = nullptr;
  DeviceMarks after;
};

class DeviceMachine : public Machine {
 public:
  // `size`: of the longest run of any member.
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
  size_t filled_ = 0, taken_ = 0;  // bytes of the run for which that is launched
};

// Also a reducescatter: who has no output for a part leaves it to those who have.
class DeviceReduce : public DeviceMachine {
 public:
  DeviceReduce(std::shared_ptr<DeviceLink> link, DeviceSlots* slots, DeviceParts parts, DeviceOrder order,
               const Reduction& reduction);

 private:
  void Fill(size_t begin, size_t end, CudaAddress slot) override;
  void Take(size_t begin, size_t end) override;

  Reduction reduction_;
};

// Tensors of an allreduce that lie at the same places of a region of each member: such a region is a run itself.
struct DirectRun {
  DeviceParts parts;               // this member's
  std::vector<CudaAddress> bases;  // of the regions, by member
};

// Of tensors in regions that all members map, on one device. Nothing is gathered: one member sums all tensors where
// they lie, and puts the results there, when the others are ready. The slots are used for their flags alone.
class DeviceDirect : public DeviceMachine {
 public:
  DeviceDirect(std::shared_ptr<DeviceLink> link, DeviceSlots* slots, std::vector<DirectRun> runs, DeviceOrder order,
               const Reduction& reduction);

 private:
  void Fill(size_t begin, size_t end, CudaAddress slot) override;
  bool MayTake() const override;
  void Take(size_t begin, size_t end) override;
  int worker() const { return link_->members() - 1; }  // the one who sums

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

// Allgather and alltoall: each member's run has places of its own in the others' outputs.
class DeviceExchange : public DeviceMachine {
 public:
  // from[j]: the run of member j, with outputs for what this member wants of it.
  DeviceExchange(std::shared_ptr<DeviceLink> link, DeviceSlots* slots, DeviceParts own, std::vector<DeviceParts> from,
                 DeviceOrder order);

 private:
  void Fill(size_t begin, size_t end, CudaAddress slot) override;
  void Take(size_t begin, size_t end) override;

  std::vector<DeviceParts> from_;
};

}  // namespace hvd
