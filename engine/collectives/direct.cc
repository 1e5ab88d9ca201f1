// SPDX-License-Identifier: Apache-2.0
#include "collectives/direct.h"

#include <cstring>

#include "collectives/kernels.h"

namespace hvd {
namespace {

// Bytes in one call. They are so few that copies to the third and later members come from the cache, and that other
// state machines are not delayed.
constexpr size_t kBlock = size_t{128} << 10;
// Bytes of each member in one step if sources must be scaled first, so that the scaled copies stay in the first-level
// cache.
constexpr size_t kScratch = size_t{2} << 10;

}  // namespace

DirectAllreduce::DirectAllreduce(Lane* lane, std::vector<Flat> views, Reduction reduction)
    : lane_(lane),
      views_(std::move(views)),
      reduction_(reduction),
      share_(ShareOf({0, views_[0].size()}, lane->members(), lane->me())),
      places_(views_.size()),
      sources_(views_.size()) {}

Machine::Step DirectAllreduce::Advance() {
  switch (stage_) {
    case Stage::kArriving:
      lane_->PostNothing(1);
      stage_ = Stage::kWaiting;
      [[fallthrough]];
    case Stage::kWaiting:
      if (!lane_->AllPosted()) return Step::kStuck;
      lane_->Release();
      stage_ = Stage::kReducing;
      [[fallthrough]];
    case Stage::kReducing: {
      const size_t length = std::min(kBlock, share_.length);
      ReduceBlock(share_.begin, length);
      const uint64_t by_others = length * (views_.size() - 1);
      lane_->CountMemory(by_others, by_others);
      share_ = {share_.begin + length, share_.length - length};
      if (share_.length > 0) return Step::kMoved;
      lane_->PostNothing(1);
      stage_ = Stage::kLeaving;
      return Step::kMoved;
    }
    case Stage::kLeaving:
      if (!lane_->AllPosted()) return Step::kStuck;
      lane_->Release();
      return Step::kDone;
  }
  return Step::kStuck;
}

void DirectAllreduce::ReduceBlock(size_t begin, size_t length) {
  const bool scaled = reduction_.prescale != 1.0;
  views_[0].ForRange(begin, length, [&](std::byte*, size_t bytes, size_t offset, bool) {
    const size_t step = scaled ? kScratch : bytes;
    for (size_t done = 0; done < bytes; done += step) {
      const size_t piece = std::min(step, bytes - done);
      for (size_t j = 0; j < views_.size(); ++j) places_[j] = views_[j].Contiguous(begin + offset + done, piece);
      if (scaled) {
        ScaleSources(piece);
      } else {
        std::copy(places_.begin(), places_.end(), sources_.begin());
      }
      ReduceStretch(piece);
    }
  });
}

void DirectAllreduce::ScaleSources(size_t bytes) {
  scratch_.resize(kScratch * places_.size());
  for (size_t j = 0; j < places_.size(); ++j) {
    std::byte* const source = scratch_.data() + j * kScratch;
    ScaleCopy(reduction_.dtype, source, places_[j], bytes / SizeOf(reduction_.dtype), reduction_.prescale);
    sources_[j] = source;
  }
}

void DirectAllreduce::ReduceStretch(size_t bytes) {
  const int members = static_cast<int>(places_.size());
  Combine(reduction_, places_[0], places_[1], sources_.data(), members, bytes / SizeOf(reduction_.dtype));
  for (int j = 2; j < members; ++j) std::memcpy(places_[j], places_[0], bytes);
}

}  // namespace hvd
