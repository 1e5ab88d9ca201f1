// SPDX-License-Identifier: Apache-2.0
// A collective under way. Advance does what can be done now and never blocks, so that any thread may drive it and many
// can be under way at once. A machine touches its lanes only in Advance: until then they may be another's.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/types.h"
#include "collectives/flat.h"
#include "transport/lane.h"

namespace hvd {

class Machine {
 public:
  enum class Step { kStuck, kMoved, kDone };
  virtual ~Machine() = default;
  virtual Step Advance() = 0;
  // Whether bytes went straight into the outputs of other members.
  virtual bool single_copy() const { return false; }
  // Whether it is stuck until a device has done something: devices do not tell, somebody has to look.
  virtual bool watches_device() const { return false; }
};

// The two lanes of a group: what goes to its owner, and what comes back from it. Two, so that the chunks of both
// directions need no common order.
struct Exchange {
  std::unique_ptr<Lane> there;
  std::unique_ptr<Lane> back;

  int members() const { return there->members(); }
  int me() const { return there->me(); }
};

// One index of a lane after another: hands each member's piece on as it arrives and releases the index when all came.
class Collector {
 public:
  explicit Collector(int members) : have_(static_cast<size_t>(members), 0) {}

  // target(j) -> {length, where a socket may deliver or nullptr}; take(j, piece). kDone: the index is complete.
  template <typename Target, typename Take>
  Machine::Step Run(Lane& lane, Lane::Layout layout, Target target, Take take) {
    bool moved = false, all = true;
    for (int j = 0; j < lane.members(); ++j) {
      if (j == lane.me() || have_[j]) continue;
      const std::pair<size_t, std::byte*> where = target(j);
      const std::byte* piece = lane.Fetch(j, layout, where.first, where.second);
      if (!piece) {
        all = false;
        continue;
      }
      take(j, piece);
      have_[j] = 1;
      moved = true;
    }
    if (!all) return moved ? Machine::Step::kMoved : Machine::Step::kStuck;
    std::fill(have_.begin(), have_.end(), 0);
    lane.Release();
    return Machine::Step::kDone;
  }

 private:
  std::vector<char> have_;
};

// Every other member's piece of the current index, by member, or false while one is missing.
bool FetchAll(Lane& lane, Lane::Layout layout, size_t length, std::vector<const std::byte*>* pieces);

constexpr size_t kLine = 64;  // of the caches, in bytes

// A range of bytes, and the part of it that falls to owner `index` of `count`: on cache-line borders, so that no two
// owners write the same line.
struct Range {
  size_t begin, length;
};
Range ShareOf(Range whole, int count, int index);

// How the elements of a batch are combined.
struct Reduction {
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;  // kAverage never gets here: it is kSum with a factor or a divisor
  double prescale = 1.0;
  double postscale = 1.0;
  int64_t divisor = 1;  // the number of members, for averages of integers: exact, truncated toward zero

  // The type that holds the sum of all members. For averages of integers under 64 bits it is wider than dtype, so that
  // the sum cannot overflow before the division. It follows from dtype and divisor alone, so all members agree on it.
  DType SumDType() const;
  // True for an average of integers under 64 bits. Wherever partial sums of it travel, they travel as SumDType().
  bool IsWidened() const { return divisor != 1 && SumDType() != dtype; }
  // How many times larger such a sum is than an element.
  size_t SumRatio() const { return SizeOf(SumDType()) / SizeOf(dtype); }
};

// Combines `count` elements of each source, in their order, with the factor and the divisor; dst2 may be null.
void Combine(const Reduction& reduction, void* dst, void* dst2, const void* const* sources, int count_of_sources,
             size_t count);
// In the order in which the hierarchy sums: inside each of the hosts (members by host) first, then their sums.
// `partials` is room that is reused; `dst` is none of the sources.
void CombineByHosts(const Reduction& reduction, void* dst, const void* const* sources,
                    const std::vector<std::vector<int>>& hosts, size_t count, std::vector<std::byte>* partials);

// Copies [begin, begin + length) of `from` to `to`, times `factor`. A wide tensor is rounded to `dtype` before that, as
// if it had been passed like that.
void Gather(const Flat& from, size_t begin, size_t length, DType dtype, double factor, std::byte* to);
// Copies `from` over [begin, begin + length) of `to`; wide tensors need to know its dtype.
void Scatter(const std::byte* from, const Flat& to, size_t begin, size_t length, DType dtype = DType::kUInt8);

// What a member posts: one piece for each of the others.
struct Outgoing {
  std::vector<const std::byte*> pieces;
  std::vector<size_t> lengths;
};

// Posts a scattered chunk: for each other member j its piece of `in`, at piece_of(j), times `factor`. Towards sockets
// what lies in one tensor is sent from there.
template <typename PieceOf>
void PostPieces(Lane& lane, const Flat& in, DType dtype, double factor, Outgoing* outgoing, PieceOf piece_of) {
  outgoing->pieces.resize(static_cast<size_t>(lane.members()));
  outgoing->lengths.resize(static_cast<size_t>(lane.members()));
  for (int j = 0; j < lane.members(); ++j) {
    const Range piece = piece_of(j);
    outgoing->lengths[j] = piece.length;
    if (j == lane.me()) continue;
    const bool as_it_lies = lane.by_sockets() && factor == 1.0;
    outgoing->pieces[j] = as_it_lies ? in.Contiguous(piece.begin, piece.length) : nullptr;
    if (outgoing->pieces[j]) continue;
    std::byte* slot = lane.Slot() + static_cast<size_t>(j) * lane.piece_bytes();
    Gather(in, piece.begin, piece.length, dtype, factor, slot);
    outgoing->pieces[j] = slot;
  }
  if (lane.by_sockets()) {
    lane.PostScatterFrom(outgoing->pieces.data(), outgoing->lengths.data());
  } else {
    lane.PostScatter(outgoing->lengths.data());
  }
}

// Takes every other member's chunk at the current index to its place piece_of(j) in `out`.
template <typename PieceOf>
Machine::Step CollectPieces(Collector& collector, Lane& lane, Lane::Layout layout, const Flat& out, DType dtype,
                            PieceOf piece_of) {
  return collector.Run(
      lane, layout,
      [&](int j) {
        const Range piece = piece_of(j);
        return std::make_pair(piece.length, out.Contiguous(piece.begin, piece.length));
      },
      [&](int j, const std::byte* bytes) {
        const Range piece = piece_of(j);
        Scatter(bytes, out, piece.begin, piece.length, dtype);
      });
}

}  // namespace hvd
