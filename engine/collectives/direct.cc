// SPDX-License-Identifier: Apache-2.0
#include "collectives/direct.h"

#include <cstring>

#include "collectives/kernels.h"

namespace hvd {
namespace {

// One turn's work: small enough that the copies to third members come from the cache and that others get their turn.
constexpr size_t kBlock = size_t{128} << 10;

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
  views_[0].ForRange(begin, length, [&](std::byte*, size_t bytes, size_t offset, bool wide) {
    for (size_t j = 0; j < views_.size(); ++j) places_[j] = views_[j].At(begin + offset);
    wide ? ReduceWideStretch(bytes) : ReduceStretch(bytes);
  });
}

void DirectAllreduce::ReduceStretch(size_t bytes) {
  const size_t count = bytes / SizeOf(reduction_.dtype), members = places_.size();
  std::copy(places_.begin(), places_.end(), sources_.begin());
  if (reduction_.prescale != 1.0) {
    scaled_.resize(bytes * members);
    for (size_t j = 0; j < members; ++j) {
      ScaleCopy(reduction_.dtype, scaled_.data() + j * bytes, places_[j], count, reduction_.prescale);
      sources_[j] = scaled_.data() + j * bytes;
    }
  }
  Combine(reduction_, places_[0], places_[1], sources_.data(), static_cast<int>(members), count);
  for (size_t j = 2; j < members; ++j) std::memcpy(places_[j], places_[0], bytes);
}

// The tensors are float32: the bits of rounding them, reducing halves and widening the result.
void DirectAllreduce::ReduceWideStretch(size_t bytes) {
  const size_t count = bytes / SizeOf(reduction_.dtype), members = places_.size();
  auto floats = [this](size_t j) { return reinterpret_cast<float*>(places_[j]); };
  if (members == 2 && reduction_.op == ReduceOp::kSum && reduction_.prescale == 1.0) {
    SumRounded(reduction_.dtype, floats(0), floats(1), floats(0), floats(1), count, reduction_.postscale);
    return;
  }
  scaled_.resize(bytes * members);
  for (size_t j = 0; j < members; ++j) {
    std::byte* const halves = scaled_.data() + j * bytes;
    Narrow(reduction_.dtype, halves, places_[j], count);
    ScaleCopy(reduction_.dtype, halves, halves, count, reduction_.prescale);
    sources_[j] = halves;
  }
  Combine(reduction_, scaled_.data(), nullptr, sources_.data(), static_cast<int>(members), count);
  Widen(reduction_.dtype, places_[0], scaled_.data(), count);
  for (size_t j = 1; j < members; ++j) std::memcpy(places_[j], places_[0], 2 * bytes);
}

}  // namespace hvd
