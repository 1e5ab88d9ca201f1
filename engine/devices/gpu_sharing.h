// SPDX-License-Identifier: Apache-2.0
// Record of which process sets have members that share GPUs. Callers use it because running work concurrently gains
// less there. Any thread may use it.
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
  // Return 1 or 0, or -1 if the set has not been set up on GPUs.
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
