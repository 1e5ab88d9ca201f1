// SPDX-License-Identifier: Apache-2.0
// Collectives of ordinary buffers: every byte is copied once into a ring of slots in shared memory that stays in the
// caches, and read from there. Posting a step overlaps with taking the step before it.
#include <string.h>

#include "floor.h"

static size_t Least(size_t a, size_t b) { return a < b ? a : b; }

static size_t StepFloats(const Floor* floor) { return floor->piece * (size_t)floor->ranks; }

static float* Slot(const Floor* floor, int rank, uint64_t step) {
  const size_t slot = (size_t)kMaxPiece * (size_t)floor->ranks;
  return floor->ring + (size_t)rank * kSlots * (slot + kMaxPiece) + step % kSlots * slot;
}

static float* Result(const Floor* floor, int rank, uint64_t step) {
  const size_t slot = (size_t)kMaxPiece * (size_t)floor->ranks;
  return floor->ring + (size_t)rank * kSlots * (slot + kMaxPiece) + kSlots * slot + step % kSlots * kMaxPiece;
}

// Return how many of `count` floats are in the piece that begins at `begin`.
static size_t PieceAt(const Floor* floor, size_t begin, size_t count) {
  return begin < count ? Least(floor->piece, count - begin) : 0;
}

static void AwaitAll(const Floor* floor, const Flag* flags, uint64_t step) {
  if (step < kSlots) return;
  for (int rank = 0; rank < floor->ranks; rank++) Await(floor, &flags[rank], step - kSlots + 1);
}

void AddTo(float* restrict sum, const float* restrict values, size_t count) {
  for (size_t i = 0; i < count; i++) sum[i] += values[i];
}

static void AddToBoth(float* restrict sum, const float* restrict values, float* restrict copy, size_t count) {
  for (size_t i = 0; i < count; i++) copy[i] = sum[i] += values[i];
}

// Sum one piece of this rank; while adding the last addend, also write the sum to where other ranks read it.
static void ReducePiece(Floor* floor, uint64_t step, float* mine, size_t count) {
  const int last = floor->rank == floor->ranks - 1 ? floor->ranks - 2 : floor->ranks - 1;
  AwaitAll(floor, floor->control->collected, step);
  for (int rank = 0; rank < floor->ranks; rank++) {
    if (rank == floor->rank) continue;
    Await(floor, &floor->control->posted[rank], step + 1);
    const float* theirs = Slot(floor, rank, step) + (size_t)floor->rank * floor->piece;
    if (rank == last) {
      AddToBoth(mine, theirs, Result(floor, floor->rank, step), count);
    } else {
      AddTo(mine, theirs, count);
    }
  }
  Announce(&floor->control->taken[floor->rank], step + 1);
}

static void AllreduceInPieces(Floor* floor, float* data, size_t count) {
  const size_t each = StepFloats(floor), steps = (count + each - 1) / each;
  const uint64_t base = floor->posts;
  for (size_t i = 0; i < steps + 2; i++) {
    if (i < steps) {
      AwaitAll(floor, floor->control->taken, base + i);
      for (int rank = 0; rank < floor->ranks; rank++) {
        const size_t begin = i * each + (size_t)rank * floor->piece;
        float* slot = Slot(floor, floor->rank, base + i) + (size_t)rank * floor->piece;
        if (rank != floor->rank) memcpy(slot, data + begin, PieceAt(floor, begin, count) * sizeof(float));
      }
      Announce(&floor->control->posted[floor->rank], base + i + 1);
    }
    if (i >= 1 && i - 1 < steps) {
      const size_t begin = (i - 1) * each + (size_t)floor->rank * floor->piece;
      ReducePiece(floor, base + i - 1, data + begin, PieceAt(floor, begin, count));
    }
    if (i >= 2) {
      for (int rank = 0; rank < floor->ranks; rank++) {
        if (rank == floor->rank) continue;
        const size_t begin = (i - 2) * each + (size_t)rank * floor->piece;
        Await(floor, &floor->control->taken[rank], base + i - 1);
        memcpy(data + begin, Result(floor, rank, base + i - 2), PieceAt(floor, begin, count) * sizeof(float));
      }
      Announce(&floor->control->collected[floor->rank], base + i - 1);
    }
  }
  floor->posts = base + steps;
}

// What a rank posts in each step, except in an allreduce in pieces: a part for each rank, or one block for all.
typedef struct {
  size_t count;   // floats that this rank sends to one other rank through the ring
  size_t each;    // floats of them that one step sends
  size_t stride;  // floats between the parts for neighbouring ranks in the input; 0 if all ranks get one block
} Route;

static void Post(Floor* floor, uint64_t step, const float* input, Route route, size_t begin) {
  const size_t bytes = Least(route.each, route.count - begin) * sizeof(float);
  float* slot = Slot(floor, floor->rank, step);
  AwaitAll(floor, floor->control->taken, step);
  if (route.stride == 0) {
    memcpy(slot, input + begin, bytes);
  } else {
    for (int rank = 0; rank < floor->ranks; rank++) {
      const float* part = input + (size_t)rank * route.stride + begin;
      if (rank != floor->rank) memcpy(slot + (size_t)rank * route.each, part, bytes);
    }
  }
  Announce(&floor->control->posted[floor->rank], step + 1);
}

static void Take(Floor* floor, uint64_t step, int kind, float* output, Route route, size_t begin) {
  const size_t count = Least(route.each, route.count - begin);
  for (int rank = 0; rank < floor->ranks; rank++) {
    if (rank == floor->rank || (kind == kBroadcast && rank != 0)) continue;
    Await(floor, &floor->control->posted[rank], step + 1);
    const float* slot = Slot(floor, rank, step) + (route.stride ? (size_t)floor->rank * route.each : 0);
    if (kind == kReducescatter || kind == kAllreduce) {
      AddTo(output + begin, slot, count);
    } else {
      memcpy(output + begin + (kind == kBroadcast ? 0 : (size_t)rank * route.count), slot, count * sizeof(float));
    }
  }
  Announce(&floor->control->taken[floor->rank], step + 1);
}

static Route RouteOf(const Floor* floor, int kind, size_t count) {
  const size_t share = count / (size_t)floor->ranks;
  if (kind == kAllgather) return (Route){share, StepFloats(floor), 0};
  if (kind == kAlltoall || kind == kReducescatter) return (Route){share, floor->piece, share};
  return (Route){count, kind == kBroadcast ? StepFloats(floor) : floor->piece, 0};
}

// Run a collective through the ring. `count` is the floats of the largest buffer; an allreduce works in place in
// `output`.
void RunStaged(Floor* floor, int kind, const float* input, float* output, size_t count) {
  if (kind == kAllreduce && !floor->whole) {
    AllreduceInPieces(floor, output, count);
    return;
  }
  const Route route = RouteOf(floor, kind, count);
  const size_t steps = (route.count + route.each - 1) / route.each;
  const uint64_t base = floor->posts;
  const size_t own = (size_t)floor->rank * route.count;
  if (kind == kAllgather) memcpy(output + own, input, route.count * sizeof(float));
  if (kind == kAlltoall) memcpy(output + own, input + own, route.count * sizeof(float));
  if (kind == kReducescatter) memcpy(output, input + own, route.count * sizeof(float));
  for (size_t i = 0; i < steps + 1; i++) {
    const int silent = kind == kBroadcast && floor->rank != 0;
    if (i < steps && !silent) Post(floor, base + i, kind == kAllreduce ? output : input, route, i * route.each);
    if (i >= 1) Take(floor, base + i - 1, kind, output, route, (i - 1) * route.each);
  }
  // Ranks that posted nothing must advance their counts too. No result of an older step is left to collect.
  Announce(&floor->control->posted[floor->rank], base + steps);
  Announce(&floor->control->collected[floor->rank], base + steps);
  floor->posts = base + steps;
}
