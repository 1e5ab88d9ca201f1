// SPDX-License-Identifier: Apache-2.0
#include "core/direct_on_device.h"

#include <algorithm>
#include <map>
#include <utility>

namespace hvd {

// Return true if each tensor has one offset on all members, so that a kernel run can use one region of each member.
bool DirectOnDevice::NamesPlaces() const {
  return std::all_of(entries_.begin(), entries_.end(), [this](const auto& entry) {
    const std::vector<int64_t>& places = entry->sizes;
    return places.size() == set_.ranks().size() && std::all_of(places.begin(), places.end(), [&](int64_t place) {
             const size_t offset = DevicePlace::Of(place).offset;
             return place >= 0 && offset % kUnit == 0 && offset == DevicePlace::Of(places[0]).offset;
           });
  });
}

// Start mapping the regions that are not mapped yet. Return false if there are none.
bool DirectOnDevice::BeginMeeting() {
  std::vector<int64_t> numbers(set_.ranks().size(), -1);
  bool any = false;
  for (const auto& entry : entries_) {
    for (size_t j = 0; j < numbers.size(); ++j) {
      const int64_t number = DevicePlace::Of(entry->sizes[j]).number;
      if (numbers[j] >= 0 || set_.regions()->Find(static_cast<int>(j), number)) continue;
      numbers[j] = number;
      any = true;
    }
  }
  if (any) set_.regions()->Begin(std::move(numbers));
  return any;
}

Machine::Step DirectOnDevice::Advance() {
  if (!NamesPlaces()) return Machine::Step::kDone;
  if (!meets_ && !BeginMeeting()) return Machine::Step::kDone;
  meets_ = true;
  const Machine::Step step = set_.regions()->Advance();
  if (step != Machine::Step::kDone) return step;
  meets_ = false;  // there may be further regions
  if (!set_.regions()->why_not().empty()) set_.devices()->regions().Unshare(set_.id());
  return Machine::Step::kMoved;
}

std::vector<DirectRun> DirectOnDevice::Runs() const {
  if (!NamesPlaces()) return {};
  struct Tensor {
    size_t offset, bytes;
  };
  std::map<std::vector<CudaAddress>, std::vector<Tensor>> tensors;  // tensors by the base addresses of their regions
  for (const auto& entry : entries_) {
    const size_t bytes = entry->request.Bytes();
    std::vector<CudaAddress> bases;
    for (size_t j = 0; j < set_.ranks().size(); ++j) {
      const DevicePlace place = DevicePlace::Of(entry->sizes[j]);
      const RegionMeeting::Known* const known = set_.regions()->Find(static_cast<int>(j), place.number);
      if (!known || !known->base || bytes > known->bytes || place.offset > known->bytes - bytes) return {};
      bases.push_back(known->base);
    }
    tensors[std::move(bases)].push_back({DevicePlace::Of(entry->sizes[0]).offset, bytes});
  }
  std::vector<DirectRun> runs;
  for (auto& [bases, parts] : tensors) {
    std::sort(parts.begin(), parts.end(), [](const Tensor& a, const Tensor& b) { return a.offset < b.offset; });
    DirectRun& run = runs.emplace_back();
    run.bases = bases;
    size_t end = 0;
    for (const Tensor& tensor : parts) {
      if (tensor.offset < end) return {};  // two tensors overlap in memory
      end = tensor.offset + tensor.bytes;
      run.parts.AddAt(tensor.offset, bases[static_cast<size_t>(set_.me())] + tensor.offset, tensor.bytes);
    }
  }
  return runs;
}

}  // namespace hvd
