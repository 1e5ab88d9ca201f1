// SPDX-License-Identifier: Apache-2.0
// Collectives on memory of a device that all members reach. Each fills a slot of its arena there; owners put sums into
// their slots; all take what they want from those. Nobody waits for the device: work is put on streams, ordered by
// events, and the lanes' indices tell that these are recorded. A machine is done when all of its work is launched.
#pragma once

#include <memory>
#include <string>
#include <vector>

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
  size_t size() const { return size_; }
  const std::vector<DevicePart>& all() const { return parts_; }
  // Copies from the tensors of [begin, end) to a run at `flat`, whose first byte is that of `begin`.
  void Fill(const Device& device, size_t begin, size_t end, CudaAddress flat) const;
  void Take(const Device& device, size_t begin, size_t end, CudaAddress flat) const;
  // The same for all of them and a run in pinned memory of the host.
  void CopyDown(const Device& device, std::byte* flat) const;
  void CopyUp(const Device& device, const std::byte* flat) const;

 private:
  struct Piece {
    CudaAddress address;
    size_t begin, bytes;
  };
  // What [begin, end) has of the tensors on one side.
  std::vector<Piece> PiecesOf(size_t begin, size_t end, CudaAddress DevicePart::*side) const;
  static void Launch(const Device& device, const std::vector<Piece>& pieces, size_t begin, CudaAddress flat, bool gathers,
                     CudaStream stream);

  std::vector<DevicePart> parts_;
  size_t size_ = 0;
};

// The members of a set meet on a device: each tells how it can be reached, maps the others, and hears whether all could.
// Once for each set.
class DeviceMeeting {
 public:
  DeviceMeeting(Devices* devices, Device* device, Lane* lane, size_t slot_bytes);
  // kDone: `link` is there, or `why_not` says why there is none. All members come to the same.
  Machine::Step Advance();
  const std::shared_ptr<DeviceLink>& link() const { return link_; }
  const std::string& why_not() const { return why_not_; }

 private:
  enum class Stage { kBegin, kOpening, kTelling, kHearing, kMapping, kAnswering, kAgreeing, kOver };
  bool Hears(size_t bytes);

  Devices* devices_;
  Lane* lane_;
  Stage stage_ = Stage::kBegin;
  std::shared_ptr<DeviceLink> link_;
  std::shared_ptr<DeviceWorker::Job> job_;
  std::vector<const std::byte*> heard_;
  std::string why_not_;
};

// Chunk by chunk: all fill, owners reduce (each its share, in its own slot), all take. On one device there is one owner:
// whoever else had kernels to run would have to wait for its turn.
class DeviceMachine : public Machine {
 public:
  // `ready`: what the tensors must wait for.
  DeviceMachine(std::shared_ptr<DeviceLink> link, Exchange* lanes, DeviceParts parts,
                std::vector<std::shared_ptr<DeviceMark>> ready);
  Step Advance() override;

 protected:
  virtual bool Fills() const { return true; }
  // The members whose slots hold the result, and what each of them has of it.
  virtual int owners() const = 0;
  virtual int OwnerAt(int index) const { return index; }
  virtual void Reduce(Range /*share*/, size_t /*chunk*/, int /*slot*/) {}

  Range ShareOfOwner(size_t chunk, int index) const;

  std::shared_ptr<DeviceLink> link_;
  Exchange& lanes_;
  DeviceParts parts_;

 private:
  void FillNext();
  void ReduceNext();
  void TakeNext();
  bool MayFill() const;
  size_t EndOf(size_t chunk) const { return std::min(parts_.size(), chunk + link_->slot_bytes()); }

  std::vector<std::shared_ptr<DeviceMark>> ready_;
  size_t filled_ = 0, reduced_ = 0, taken_ = 0;  // bytes of the run
};

// Also a reducescatter: who has no output for a part leaves it to those who have.
class DeviceReduce : public DeviceMachine {
 public:
  DeviceReduce(std::shared_ptr<DeviceLink> link, Exchange* lanes, DeviceParts parts,
               std::vector<std::shared_ptr<DeviceMark>> ready, const Reduction& reduction)
      : DeviceMachine(std::move(link), lanes, std::move(parts), std::move(ready)), reduction_(reduction) {}

 private:
  int owners() const override { return link_->one_device() ? 1 : lanes_.members(); }
  void Reduce(Range share, size_t chunk, int slot) override;

  Reduction reduction_;
};

class DeviceBroadcast : public DeviceMachine {
 public:
  DeviceBroadcast(std::shared_ptr<DeviceLink> link, Exchange* lanes, DeviceParts parts,
                  std::vector<std::shared_ptr<DeviceMark>> ready, int root)
      : DeviceMachine(std::move(link), lanes, std::move(parts), std::move(ready)), root_(root) {}

 private:
  bool Fills() const override { return lanes_.me() == root_; }
  int owners() const override { return 1; }
  int OwnerAt(int) const override { return root_; }

  int root_;
};

}  // namespace hvd
