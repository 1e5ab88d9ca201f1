// SPDX-License-Identifier: Apache-2.0
// Common numbers for devices. A tensor lies on one device of each member of a set, and each member may number its
// device differently. The set uses the first member's number for all of them, also while the first member has joined
// and sends no reports. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "agreement/reports.h"

namespace hvd {

class DeviceNames {
 public:
  // If the first member has joined, add a report for it, with the device that it used together with the current device
  // of the first other member. If they never had tensors there together, the other member's number is used.
  void Settle(Reports* reports) {
    if (reports->First().device < 0) return;
    if (reports->Has(0)) return Learn(*reports);
    const size_t first = reports->FirstMember();
    const int32_t there = reports->Of(first).device;
    const auto known =
        std::find_if(by_name_.begin(), by_name_.end(), [&](const auto& item) { return item.second[first] == there; });
    if (known == by_name_.end()) return;
    Request silent = reports->Of(first);
    silent.device = known->first;
    silent.place = -1;  // a member that has joined contributes zeros and no memory
    reports->Add(0, silent);
  }

 private:
  void Learn(const Reports& reports) {
    std::vector<int32_t>& devices = by_name_[reports.Of(0).device];
    devices.resize(reports.members(), -1);
    for (size_t member = 0; member < devices.size(); ++member) {
      if (reports.Has(member)) devices[member] = reports.Of(member).device;
    }
  }

  // key: the first member's number; values: each member's number, -1 if unknown
  std::map<int32_t, std::vector<int32_t>> by_name_;
};

}  // namespace hvd
