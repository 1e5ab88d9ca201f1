// SPDX-License-Identifier: Apache-2.0
// Setup negotiation of a set's members about regions of device memory that hold their tensors, once for each region.
// Each member reports how its region can be reached, maps those of the others, and learns whether all succeeded.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/machine.h"
#include "devices/devices.h"

namespace hvd {

class RegionMeeting {
 public:
  struct Known {
    CudaAddress base = 0;  // 0: not all members can access it
    size_t bytes = 0;
  };

  // `lane` belongs to a batch that all members run.
  RegionMeeting(Devices* devices, Device* device, Lane* lane);
  ~RegionMeeting();
  RegionMeeting(const RegionMeeting&) = delete;
  RegionMeeting& operator=(const RegionMeeting&) = delete;

  // Return the result for a region, or null if it has not been negotiated. The answer is equal on all members.
  const Known* Find(int member, int64_t number) const;
  // Start to negotiate about one region of each member, -1 for none. All members pass equal numbers, then call Advance
  // until kDone.
  void Begin(std::vector<int64_t> numbers);
  Machine::Step Advance();
  const std::string& why_not() const { return why_not_; }  // reason for the last region that could not be reached

 private:
  enum class Stage { kTelling, kHearing, kMapping, kAnswering, kAgreeing, kOver };
  struct Card {  // report of one member about its region
    CudaHandle handle;
    uint64_t bytes;
  };
  struct Maps {  // data of the mapping job
    Device* device;
    std::vector<Card> cards;
    std::vector<CudaAddress> bases;
    std::string why_not;

    void Make(const std::vector<int64_t>& numbers, int me);
  };
  static constexpr size_t kText = 128;

  void Settle();

  Devices& devices_;
  Device* device_;
  Lane& lane_;
  Stage stage_ = Stage::kOver;
  std::vector<int64_t> numbers_;
  std::shared_ptr<Maps> maps_;
  std::shared_ptr<DeviceWorker::Job> job_;
  std::vector<const std::byte*> heard_;
  std::map<std::pair<int, int64_t>, Known> known_;  // by member and number
  std::vector<CudaAddress> mapped_;
  std::string why_not_;
};

}  // namespace hvd
