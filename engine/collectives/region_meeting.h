// SPDX-License-Identifier: Apache-2.0
// The members of a set meet about regions of a device in which tensors of theirs lie: each tells how its own is
// reached, maps the others', and hears whether all could. Once for each region.
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
    CudaAddress base = 0;  // 0: not all members reach it
    size_t bytes = 0;
  };

  // With the lane of a batch that all members run.
  RegionMeeting(Devices* devices, Device* device, Lane* lane);
  ~RegionMeeting();
  RegionMeeting(const RegionMeeting&) = delete;
  RegionMeeting& operator=(const RegionMeeting&) = delete;

  // Null: the members have not met about it. All of them come to the same answer.
  const Known* Find(int member, int64_t number) const;
  // They do, about one region of each, -1 for none: all pass the same numbers, and go on until kDone.
  void Begin(std::vector<int64_t> numbers);
  Machine::Step Advance();
  const std::string& why_not() const { return why_not_; }  // of the last that could not be reached

 private:
  enum class Stage { kTelling, kHearing, kMapping, kAnswering, kAgreeing, kOver };
  struct Card {  // what a member tells of its region
    CudaHandle handle;
    uint64_t bytes;
  };
  struct Maps {  // the job's
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
