// SPDX-License-Identifier: Apache-2.0
// Which process sets have members that share GPUs: for callers who have less to gain there from what runs beside their
// own work. Any thread.
#pragma once

#include <map>
#include <mutex>

namespace hvd {

class GpuSharing {
 public:
  void Note(int set, bool shared) {
    std::lock_guard<std::mutex> lock(mutex_);
    shared_[set] = shared;
  }
  // 1 or 0; -1: its members have not met on GPUs.
  int Of(int set) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = shared_.find(set);
    return found == shared_.end() ? -1 : found->second;
  }

 private:
  std::mutex mutex_;
  std::map<int, bool> shared_;
};

}  // namespace hvd
