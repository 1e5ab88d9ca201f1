// SPDX-License-Identifier: Apache-2.0
#include "collectives/machine.h"

#include <cstring>
#include <numeric>

#include "collectives/integer_average.h"
#include "collectives/kernels.h"
#include "collectives/stream_copy.h"

namespace hvd {

bool FetchAll(Lane& lane, Lane::Layout layout, size_t length, std::vector<const std::byte*>* pieces) {
  pieces->resize(static_cast<size_t>(lane.members()));
  for (int j = 0; j < lane.members(); ++j) {
    if (j == lane.me()) continue;
    const std::byte* piece = lane.Fetch(j, layout, length);
    if (!piece) return false;
    (*pieces)[j] = piece;
  }
  return true;
}

Range ShareOf(Range whole, int count, int index) {
  constexpr size_t kCacheLine = 64;
  const size_t even = (whole.length + static_cast<size_t>(count) - 1) / static_cast<size_t>(count);
  const size_t share = (even + kCacheLine - 1) / kCacheLine * kCacheLine;
  const size_t low = std::min(whole.length, share * static_cast<size_t>(index));
  return {whole.begin + low, std::min(share, whole.length - low)};
}

DType Reduction::SumDType() const {
  constexpr int64_t kMaxMembersInInt32 = 32768;  // 32768 members times 65535 is less than 2^31
  if (divisor == 1) return dtype;
  switch (dtype) {
    case DType::kUInt8:
    case DType::kInt8:
    case DType::kUInt16:
    case DType::kInt16:
      return divisor <= kMaxMembersInInt32 ? DType::kInt32 : DType::kInt64;
    case DType::kUInt32:
    case DType::kInt32:
      return DType::kInt64;
    default:
      return dtype;
  }
}

void Combine(const Reduction& reduction, void* dst, void* dst2, const void* const* sources, int count_of_sources,
             size_t count) {
  if (reduction.IsWidened()) return AverageIntegers(reduction, dst, dst2, sources, count_of_sources, count);
  Reduce(reduction.dtype, reduction.op, dst, dst2, sources, count_of_sources, count, reduction.postscale);
  if (reduction.divisor == 1) return;
  Divide(reduction.dtype, dst, count, reduction.divisor);
  if (dst2) std::memcpy(dst2, dst, count * SizeOf(reduction.dtype));
}

void CombineByHosts(const Reduction& reduction, void* dst, const void* const* sources,
                    const std::vector<std::vector<int>>& hosts, size_t count, std::vector<std::byte>* partials) {
  if (reduction.IsWidened()) {  // partial sums of hosts could overflow, but an exact sum does not depend on the order
    const auto members = std::accumulate(hosts.begin(), hosts.end(), size_t{0},
                                         [](size_t sum, const auto& host) { return sum + host.size(); });
    return Combine(reduction, dst, nullptr, sources, static_cast<int>(members), count);
  }
  const Reduction inside{reduction.dtype, reduction.op, 1.0, 1.0, 1};
  const size_t bytes = count * SizeOf(reduction.dtype);
  partials->resize(bytes * hosts.size());
  std::vector<const void*> sums, members;
  for (const std::vector<int>& host : hosts) {
    std::byte* const sum = partials->data() + sums.size() * bytes;
    members.clear();
    for (int member : host) members.push_back(sources[member]);
    Combine(inside, sum, nullptr, members.data(), static_cast<int>(members.size()), count);
    sums.push_back(sum);
  }
  Combine(reduction, dst, nullptr, sums.data(), static_cast<int>(sums.size()), count);
}

void Gather(const Flat& from, size_t begin, size_t length, DType dtype, double factor, std::byte* to) {
  from.ForRange(begin, length, [&](std::byte* data, size_t bytes, size_t offset, bool wide) {
    const size_t count = bytes / SizeOf(dtype);
    if (wide) {
      Narrow(dtype, to + offset, data, count);
      data = to + offset;
    }
    ScaleCopy(dtype, to + offset, data, count, factor);
  });
}

void Scatter(const std::byte* from, const Flat& to, size_t begin, size_t length, DType dtype) {
  to.ForRange(begin, length, [&](std::byte* data, size_t bytes, size_t offset, bool wide) {
    if (wide) {
      Widen(dtype, data, from + offset, bytes / SizeOf(dtype));
    } else if (data == from + offset) {
      return;
    } else if (to.cold()) {
      StreamCopy(data, from + offset, bytes);
    } else {
      std::memcpy(data, from + offset, bytes);
    }
  });
}

}  // namespace hvd
