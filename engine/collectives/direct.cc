// SPDX-License-Identifier: Apache-2.0
#include "collectives/direct.h"

#include <cstring>

#include "collectives/kernels.h"

namespace hvd {
namespace {

// One turn's work: small enough that the copies to third members come from the cache and that others get their turn.
constexpr size_t kBlock = size_t{128} << 10;
// Of each member, where sources must be scaled or rounded first: what comes of it stays in the first cache.
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
    const bool pair = views_.size() == 2 && reduction_.op == ReduceOp::kSum;
    const bool as_it_is = reduction_.prescale == 1.0 && (!wide || pair);
    const size_t step = as_it_is ? bytes : kScratch;
    for (size_t done = 0; done < bytes; done += step) {
      for (size_t j = 0; j < views_.size(); ++j) places_[j] = views_[j].At(begin + offset + done);
      const size_t piece = std::min(step, bytes - done);
      as_it_is ? ReduceAsItIs(piece, wide) : ReduceByScratch(piece, wide);
    }
  });
}

void DirectAllreduce::ReduceAsItIs(size_t bytes, bool wide) {
  const size_t count = bytes / SizeOf(reduction_.dtype);
  if (wide) {
    auto *const first = reinterpret_cast<float*>(places_[0]), *const second = reinterpret_cast<float*>(places_[1]);
    SumRounded(reduction_.dtype, first, second, first, second, count, reduction_.postscale);
    return;
  }
  std::copy(places_.begin(), places_.end(), sources_.begin());
  Combine(reduction_, places_[0], places_[1], sources_.data(), static_cast<int>(places_.size()), count);
  for (size_t j = 2; j < places_.size(); ++j) std::memcpy(places_[j], places_[0], bytes);
}

// Float32 is rounded, what the reduction says is scaled; the result is widened again.
void DirectAllreduce::ReduceByScratch(size_t bytes, bool wide) {
  const DType dtype = reduction_.dtype;
  const size_t count = bytes / SizeOf(dtype), members = places_.size();
  scratch_.resize(kScratch * members);
  for (size_t j = 0; j < members; ++j) {
    std::byte* const source = scratch_.data() + j * kScratch;
    if (wide) Narrow(dtype, source, places_[j], count);
    ScaleCopy(dtype, source, wide ? source : places_[j], count, reduction_.prescale);
    sources_[j] = source;
  }
  Combine(reduction_, scratch_.data(), nullptr, sources_.data(), static_cast<int>(members), count);
  for (size_t j = 0; j < members; ++j) {
    wide ? Widen(dtype, places_[j], scratch_.data(), count)
         : static_cast<void>(std::memcpy(places_[j], scratch_.data(), bytes));
  }
}

}  // namespace hvd
