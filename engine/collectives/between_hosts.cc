// SPDX-License-Identifier: Apache-2.0
#include "collectives/between_hosts.h"

#include <algorithm>

#include "base/half.h"
#include "collectives/doubling.h"
#include "collectives/exchange.h"
#include "collectives/kernels.h"
#include "collectives/ring.h"

namespace hvd {
namespace {

constexpr size_t kFlatBlock = size_t{512} << 10;  // size of an allreduce's blocks, of which several are in flight

constexpr size_t kMostUnderWay = size_t{16} << 20;

bool IsRounded(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 || dtype == DType::kFloat8E4M3 ||
         dtype == DType::kFloat8E5M2;
}

// Return true if partial sums are exchanged as float32. Minimum and maximum are not, because they are exact in any
// type.
bool TravelsWide(const Reduction& reduction) {
  return IsRounded(reduction.dtype) && (reduction.op == ReduceOp::kSum || reduction.op == ReduceOp::kProduct);
}

void ToFloat32(DType dtype, const std::byte* from, size_t count, std::byte* to) {
  if (dtype == DType::kFloat16 || dtype == DType::kBFloat16) return Widen(dtype, to, from, count);
  const auto* narrow = reinterpret_cast<const uint8_t*>(from);
  auto* wide = reinterpret_cast<float*>(to);
  for (size_t i = 0; i < count; ++i) {
    wide[i] = dtype == DType::kFloat8E4M3 ? FloatFromFloat8E4M3(narrow[i]) : FloatFromFloat8E5M2(narrow[i]);
  }
}

void FromFloat32(DType dtype, const std::byte* from, size_t count, std::byte* to) {
  if (dtype == DType::kFloat16 || dtype == DType::kBFloat16) return Narrow(dtype, to, from, count);
  const auto* wide = reinterpret_cast<const float*>(from);
  auto* narrow = reinterpret_cast<uint8_t*>(to);
  for (size_t i = 0; i < count; ++i) {
    narrow[i] = dtype == DType::kFloat8E4M3 ? Float8E4M3FromFloat(wide[i]) : Float8E5M2FromFloat(wide[i]);
  }
}

}  // namespace

PartialSums::PartialSums(const Reduction& reduction)
    : partial_{TravelsWide(reduction) ? DType::kFloat32 : reduction.dtype, reduction.op, 1.0, 1.0, 1},
      final_{reduction.dtype, reduction.op, 1.0, reduction.postscale, reduction.divisor},
      prescale_(reduction.prescale),
      element_(SizeOf(reduction.dtype)) {}

const std::byte* PartialSums::Own(const Flat& in, Range range, std::byte* scratch) {
  if (!widened() && prescale_ == 1.0) {
    if (const std::byte* lies = in.Contiguous(range.begin, range.length)) return lies;
  }
  Take(in, range, scratch);
  return scratch;
}

void PartialSums::Take(const Flat& in, Range range, std::byte* to) {
  if (!widened()) return Gather(in, range.begin, range.length, final_.dtype, prescale_, to);
  narrow_.resize(std::max(narrow_.size(), range.length));
  Gather(in, range.begin, range.length, final_.dtype, prescale_, narrow_.data());
  ToFloat32(final_.dtype, narrow_.data(), range.length / element_, to);
}

void PartialSums::Add(const std::byte* first, const std::byte* second, size_t bytes, std::byte* to) const {
  const void* const sources[] = {first, second};
  Combine(partial_, to, nullptr, sources, 2, bytes / element_);
}

void PartialSums::Finish(const std::byte* first, const std::byte* second, size_t bytes, std::byte* to) {
  const void* const sources[] = {first, second};
  const size_t count = bytes / element_;
  if (!widened()) return Combine(final_, to, nullptr, sources, 2, count);
  Reduction scaled = partial_;
  scaled.postscale = final_.postscale;
  wide_.resize(std::max(wide_.size(), Size(bytes)));
  Combine(scaled, wide_.data(), nullptr, sources, 2, count);
  FromFloat32(final_.dtype, wide_.data(), count, to);
}

uint64_t BlocksUnderWay(HostAlgorithm algorithm, int hosts, size_t block) {
  switch (algorithm) {
    case HostAlgorithm::kRing:
      return 2 + std::min(2 * static_cast<size_t>(hosts) * RingBetweenHosts::kMostChunk, kMostUnderWay) / block;
    case HostAlgorithm::kDoubling:
      return 2 * DoublingBetweenHosts::kTogether;
    default:
      return 4;
  }
}

std::unique_ptr<BetweenHosts> MakeBetweenHosts(HostAlgorithm algorithm, Exchange* exchange, BetweenHosts::Run run,
                                               size_t most) {
  switch (algorithm) {
    case HostAlgorithm::kRing:
      return std::make_unique<RingBetweenHosts>(exchange, std::move(run));
    case HostAlgorithm::kDoubling:
      return std::make_unique<DoublingBetweenHosts>(exchange, std::move(run), most);
    default:
      return std::make_unique<ExchangeBetweenHosts>(exchange, std::move(run));
  }
}

AllreduceBetweenHosts::AllreduceBetweenHosts(HostAlgorithm algorithm, Exchange* exchange, Flat in, Flat out,
                                             const Reduction& reduction) {
  const size_t bytes = in.size();
  blocks_ = (bytes + kFlatBlock - 1) / kFlatBlock;
  run_ = MakeBetweenHosts(algorithm, exchange, {std::move(in), std::move(out), reduction, blocks_, bytes, true},
                          std::min(bytes, kFlatBlock));
  for (uint64_t block = 0; block < blocks_; ++block) {
    const size_t begin = block * kFlatBlock;
    run_->Add({begin, std::min(kFlatBlock, bytes - begin)});
  }
}

Machine::Step AllreduceBetweenHosts::Advance() {
  const bool moved = run_->Advance();
  if (run_->finished() == blocks_) return Step::kDone;
  return moved ? Step::kMoved : Step::kStuck;
}

}  // namespace hvd
