// SPDX-License-Identifier: Apache-2.0
// Assignment of a set's members to GPUs. The first member on each GPU leads there, because NCCL takes one rank per GPU.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace hvd {

class GpuLayout {
 public:
  GpuLayout() = default;
  // `gpu_of` is the GPU number of each member. GPUs are numbered in the order of their first members.
  explicit GpuLayout(std::vector<int> gpu_of) : gpu_of_(std::move(gpu_of)) {
    for (size_t j = 0; j < gpu_of_.size(); ++j) {
      const auto gpu = static_cast<size_t>(gpu_of_[j]);
      if (gpu >= members_.size()) members_.resize(gpu + 1);
      members_[gpu].push_back(static_cast<int>(j));
    }
  }
  // Return the layout for the names of the members' GPUs.
  static GpuLayout Of(const std::vector<std::string>& names) {
    std::map<std::string, int> numbers;
    std::vector<int> gpu_of;
    for (const std::string& name : names) {
      gpu_of.push_back(numbers.try_emplace(name, static_cast<int>(numbers.size())).first->second);
    }
    return GpuLayout(std::move(gpu_of));
  }
  // Return the layout for members of which each has its own GPU.
  static GpuLayout Apart(size_t members) {
    std::vector<int> gpu_of(members);
    for (size_t j = 0; j < members; ++j) gpu_of[j] = static_cast<int>(j);
    return GpuLayout(std::move(gpu_of));
  }

  int gpus() const { return static_cast<int>(members_.size()); }
  bool shared() const { return members_.size() < gpu_of_.size(); }
  const std::vector<int>& gpu_of() const { return gpu_of_; }
  int GpuOf(int member) const { return gpu_of_[static_cast<size_t>(member)]; }
  // Return the members in ascending order; the first one leads.
  const std::vector<int>& MembersOn(int gpu) const { return members_[static_cast<size_t>(gpu)]; }
  bool Leads(int member) const { return MembersOn(GpuOf(member))[0] == member; }
  size_t MostOnOne() const {
    size_t most = 0;
    for (const auto& members : members_) most = std::max(most, members.size());
    return most;
  }

 private:
  std::vector<int> gpu_of_;
  std::vector<std::vector<int>> members_;  // by GPU
};

}  // namespace hvd
