// SPDX-License-Identifier: Apache-2.0
// By which number a set knows the devices on which its members have one tensor: each member may have another number for
// its own. It is the first member's, and stays that while the first member has joined and says nothing. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "agreement/reports.h"

namespace hvd {

class DeviceNames {
 public:
  // Lets a first member that has joined speak as it would: with the device that it had whenever the first of the others
  // had theirs. If they never had tensors there together, nothing is known, and the others' number has to do.
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
    silent.place = -1;  // it takes part with zeros, not with memory
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

  std::map<int32_t, std::vector<int32_t>> by_name_;  // each member's number, -1 if it is not known
};

}  // namespace hvd
