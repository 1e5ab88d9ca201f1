// SPDX-License-Identifier: Apache-2.0
// The floor: the minimum that any library must do for a collective on this machine, without names, negotiation, types
// and errors. Ranks share one piece of memory (and one socket); float32 only.
#ifndef HVD_BENCHMARKS_FLOOR_H_
#define HVD_BENCHMARKS_FLOOR_H_

#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { kMaxRanks = 64, kSlots = 4, kMaxPiece = 32768, kInlineBytes = 64 };

// The values must match those in benchkit/backend_floor.py.
enum Kind { kAllreduce, kAllgather, kBroadcast, kAlltoall, kReducescatter, kSharedAllreduce, kSocketExchange };

typedef struct {
  _Alignas(128) _Atomic uint64_t count;  // only grows, and only its owner writes it
  char inlined[kInlineBytes - sizeof(uint64_t)];
} Flag;

typedef struct {
  Flag met[kMaxRanks], posted[kMaxRanks], taken[kMaxRanks], collected[kMaxRanks], small[2][kMaxRanks];
  _Atomic uint64_t nanoseconds[kMaxRanks];  // each rank's time, from which all ranks choose one way of staging
} Control;

typedef struct {
  int rank, ranks, crowded;  // crowded: more ranks than cores, so that a waiting rank lets others run
  Control* control;
  float* ring;     // for each rank: kSlots slots with a piece for every rank, then kSlots results of one piece
  float* tensors;  // tensors of all ranks, tensor_stride floats apart
  size_t tensor_stride;
  int socket;
  uint64_t meetings, posts, smalls;  // numbers of meetings, posted steps and small messages so far
  size_t piece;                      // floats of a rank's part of one step
  int whole;                         // allreduce: every rank reduces the whole tensor
} Floor;

static inline void Relax(const Floor* floor) {
  if (floor->crowded) {
    sched_yield();
    return;
  }
#if defined(__aarch64__)
  __asm__ volatile("yield" ::: "memory");
#elif defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

static inline void Await(const Floor* floor, const Flag* flag, uint64_t count) {
  while (atomic_load_explicit(&flag->count, memory_order_acquire) < count) Relax(floor);
}

static inline void Announce(Flag* flag, uint64_t count) {
  atomic_store_explicit(&flag->count, count, memory_order_release);
}

void Meet(Floor* floor);
void RunStaged(Floor* floor, int kind, const float* input, float* output, size_t count);
void RunInline(Floor* floor, int kind, const float* input, float* output, size_t count);
void AllreduceShared(Floor* floor, size_t count);
void ExchangeOverSocket(const Floor* floor, const float* input, float* output, size_t count);

void AddTo(float* restrict sum, const float* restrict values, size_t count);

#endif  // HVD_BENCHMARKS_FLOOR_H_
