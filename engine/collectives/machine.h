// SPDX-License-Identifier: Apache-2.0
// Collective state machine: the execution of one collective. Advance makes all progress that is possible now and never
// blocks, so that any thread may drive it and many can be in flight. A state machine uses its lanes only in Advance,
// because they may belong to an earlier one until then.
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
  // Return true if bytes were written directly into the outputs of other members.
  virtual bool single_copy() const { return false; }
  // Return true if progress depends on a device. Devices send no event, so the driver must poll Advance.
  virtual bool watches_device() const { return false; }
};

// The two lanes of a group: `there` carries data to its owner and `back` carries results from it. With two lanes, the
// chunks of the two directions need no common order.
struct Exchange {
  std::unique_ptr<Lane> there;
  std::unique_ptr<Lane> back;

  int members() const { return there->members(); }
  int me() const { return there->me(); }
};

// Collector of the pieces at one lane index after another: it passes each piece on as it arrives and releases the index
// after the last one.
class Collector {
 public:
  explicit Collector(int members) : have_(static_cast<size_t>(members), 0) {}

  // Collect the pieces of the current index; return kDone once all have arrived. Args: target(j) returns the length and
  // the buffer into which a socket may deliver, or nullptr; take(j, piece) receives the piece.
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

// Fetch the pieces of all other members at the current index; return false while one is missing.
bool FetchAll(Lane& lane, Lane::Layout layout, size_t length, std::vector<const std::byte*>* pieces);

constexpr size_t kLine = 64;  // size of a cache line in bytes

// Range of bytes.
struct Range {
  size_t begin, length;
};
// Return the part of `whole` that belongs to owner `index` of `count`. Parts are multiples of a cache line, so that no
// two owners write to one line.
Range ShareOf(Range whole, int count, int index);

// How the elements of a batch are combined.
struct Reduction {
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;  // never kAverage, which is expressed as kSum with a factor or a divisor
  double prescale = 1.0;
  double postscale = 1.0;
  int64_t divisor = 1;  // number of members for averages of integers; the quotient is exact and truncated toward zero

  // Return the type that holds the sum of all members. For averages of integers under 64 bits it is wider than dtype,
  // so that the sum cannot overflow before the division. It depends on dtype and divisor only, so all members agree on
  // it.
  DType SumDType() const;
  // Return true for averages of integers under 64 bits. Members exchange their partial sums as SumDType().
  bool IsWidened() const { return divisor != 1 && SumDType() != dtype; }
  // Return how many times larger a sum is than an element.
  size_t SumRatio() const { return SizeOf(SumDType()) / SizeOf(dtype); }
};

// Combine `count` elements of the sources in their order, then apply the factor and the divisor; dst2 may be null.
void Combine(const Reduction& reduction, void* dst, void* dst2, const void* const* sources, int count_of_sources,
             size_t count);
// Combine in the order of the hierarchical algorithms: the members of each host in `hosts` first, then the sums of the
// hosts. `partials` is a buffer that is reused; `dst` must not be one of the sources.
void CombineByHosts(const Reduction& reduction, void* dst, const void* const* sources,
                    const std::vector<std::vector<int>>& hosts, size_t count, std::vector<std::byte>* partials);

// Copy [begin, begin + length) of `from` to `to`, multiplied by `factor`. A float32 tensor in a run of a half type is
// first rounded to `dtype`, as if it had been passed in that type.
void Gather(const Flat& from, size_t begin, size_t length, DType dtype, double factor, std::byte* to);
// Copy `from` to [begin, begin + length) of `to`. `dtype` matters only for float32 tensors in a run of a half type.
void Scatter(const std::byte* from, const Flat& to, size_t begin, size_t length, DType dtype = DType::kUInt8);

// Pieces that a member posts, one for each other member.
struct Outgoing {
  std::vector<const std::byte*> pieces;
  std::vector<size_t> lengths;
};

// Post a scattered chunk: for each other member j the piece of `in` at piece_of(j), multiplied by `factor`. On a lane
// without shared memory, a piece that lies in one tensor is sent directly from there.
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

// Store every other member's chunk at the current index at piece_of(j) in `out`.
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
