// SPDX-License-Identifier: Apache-2.0
// What two ranks tell each other of the GPUs between which a message goes, and which way follows from it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/config.h"
#include "collectives/nccl_meeting.h"

namespace hvd {

class GpuEnds {
 public:
  GpuEnds(const Settings* settings, Devices* devices) : settings_(*settings), devices_(devices) {}

  // NCCL does not serve this rank in collectives, which it found out for all its messages too.
  void GiveUpNccl(const std::string& why_not) {
    if (why_not_ == why_not) return;
    why_not_ = why_not;
    passports_.clear();
  }
  // What is told of a GPU here. Null: that is not known yet. Throws DeviceError.
  const NcclPassport* Of(int ordinal);
  const Nccl* nccl() const;

  // In as few bytes as it takes.
  static std::string Encode(const NcclPassport& passport);
  static bool Decode(std::string_view bytes, NcclPassport* passport);
  // Why NCCL cannot serve a message between the two; empty: it can.
  static std::string Against(const NcclPassport& sender, int from, const NcclPassport& receiver, int to);
  // Whether one of the two wants NCCL or nothing.
  static bool Insists(const NcclPassport& sender, const NcclPassport& receiver);

 private:
  struct Library;  // with the launcher

  const Settings& settings_;
  Devices* devices_;
  std::string why_not_;
  std::shared_ptr<Library> library_;
  std::shared_ptr<DeviceWorker::Job> job_;
  std::map<int, NcclPassport> passports_;  // by ordinal
};

}  // namespace hvd
