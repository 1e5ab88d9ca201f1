// SPDX-License-Identifier: Apache-2.0
// Interface of the floor for benchkit/backend_floor.py: join, choose a way, run, and time runs without Python between
// them. Also the parts that need no ring: messages that fit a cache line, and tensors that live in shared memory.
#define _GNU_SOURCE
#include "floor.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static uint64_t Nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void Meet(Floor* floor) {
  const uint64_t meeting = ++floor->meetings;
  Announce(&floor->control->met[floor->rank], meeting);
  for (int rank = 0; rank < floor->ranks; rank++) Await(floor, &floor->control->met[rank], meeting);
}

// Send the whole message in the cache line of the flag that announces it. Two alternating lines are enough: a rank
// overwrites a line only after all ranks have announced the next message, which they do only after reading this one.
void RunInline(Floor* floor, int kind, const float* input, float* output, size_t count) {
  const uint64_t turn = ++floor->smalls;
  Flag* lines = floor->control->small[turn % 2];
  const size_t share = count / (size_t)floor->ranks;
  const size_t sent = kind == kAllgather ? share : count;
  const float* source = kind == kAllreduce || kind == kBroadcast ? output : input;
  memcpy(lines[floor->rank].inlined, source, sent * sizeof(float));
  Announce(&lines[floor->rank], turn);
  for (int step = 0; step < floor->ranks; step++) {
    const int rank = (floor->rank + step) % floor->ranks;  // this rank's own line first, because it is ready
    Await(floor, &lines[rank], turn);
    const float* line = (const float*)lines[rank].inlined;
    const size_t at = (size_t)rank * share, mine = (size_t)floor->rank * share;
    if (kind == kAllgather) memcpy(output + at, line, share * sizeof(float));
    if (kind == kAlltoall) memcpy(output + at, line + mine, share * sizeof(float));
    if (kind == kBroadcast && rank == 0) memcpy(output, line, count * sizeof(float));
    if (kind == kAllreduce && step > 0) AddTo(output, line, count);
    if (kind == kReducescatter && step == 0) memcpy(output, line + mine, share * sizeof(float));
    if (kind == kReducescatter && step > 0) AddTo(output, line + mine, share);
  }
}

static void AddAndShare(float* restrict a, float* restrict b, size_t count) {
  for (size_t i = 0; i < count; i++) a[i] = b[i] = a[i] + b[i];
}

// Sum this rank's share of all tensors in place, and write it to all of them.
void AllreduceShared(Floor* floor, size_t count) {
  const size_t ranks = (size_t)floor->ranks, me = (size_t)floor->rank, block = 16384;
  const size_t begin = count * me / ranks, end = count * (me + 1) / ranks;
  float* mine = floor->tensors + me * floor->tensor_stride;
  Meet(floor);
  for (size_t i = begin; i < end; i += block) {
    const size_t n = end - i < block ? end - i : block;
    if (ranks == 2) {
      AddAndShare(mine + i, floor->tensors + (1 - me) * floor->tensor_stride + i, n);
      continue;
    }
    for (size_t r = 0; r < ranks; r++) {
      if (r != me) AddTo(mine + i, floor->tensors + r * floor->tensor_stride + i, n);
    }
    for (size_t r = 0; r < ranks; r++) {
      if (r != me) memcpy(floor->tensors + r * floor->tensor_stride + i, mine + i, n * sizeof(float));
    }
  }
  Meet(floor);
}

size_t FloorBytes(int ranks, size_t tensor_bytes) {
  const size_t ring = (size_t)ranks * kSlots * ((size_t)ranks + 1) * kMaxPiece * sizeof(float);
  return (sizeof(Control) + 4095) / 4096 * 4096 + ring + (size_t)ranks * tensor_bytes;
}

Floor* FloorJoin(const char* path, int rank, int ranks, int crowded, size_t tensor_bytes) {
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return NULL;
  char* memory = mmap(NULL, FloorBytes(ranks, tensor_bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  Floor* floor = calloc(1, sizeof(Floor));
  if (memory == MAP_FAILED || floor == NULL) return NULL;
  *floor = (Floor){.rank = rank, .ranks = ranks, .crowded = crowded, .socket = -1, .piece = 8192};
  floor->control = (Control*)memory;
  floor->tensors = (float*)(memory + FloorBytes(ranks, 0));
  floor->ring = (float*)(memory + FloorBytes(0, 0));
  floor->tensor_stride = tensor_bytes / sizeof(float);
  return floor;
}

// Return this rank's tensor in shared memory, or NULL if it is too small; `bytes` 0 frees the tensor's pages.
float* FloorTensor(Floor* floor, size_t bytes) {
  float* tensor = floor->tensors + (size_t)floor->rank * floor->tensor_stride;
  if (bytes == 0) madvise(tensor, floor->tensor_stride * sizeof(float), MADV_REMOVE);
  return bytes <= floor->tensor_stride * sizeof(float) ? tensor : NULL;
}

void FloorUseSocket(Floor* floor, int socket) { floor->socket = socket; }

void FloorRun(Floor* floor, int kind, const float* input, float* output, size_t count) {
  if (kind == kSocketExchange) {
    ExchangeOverSocket(floor, input, output, count);
  } else if (kind == kSharedAllreduce) {
    AllreduceShared(floor, count);
  } else if (count * sizeof(float) <= sizeof(((Flag*)0)->inlined)) {
    RunInline(floor, kind, input, output, count);
  } else {
    RunStaged(floor, kind, input, output, count);
  }
}

// Measure the nanoseconds of each run; all ranks start each run together.
void FloorTime(Floor* floor, int kind, const float* input, float* output, size_t count, int runs, uint64_t* times) {
  for (int i = 0; i < runs; i++) {
    Meet(floor);
    const uint64_t start = Nanoseconds();
    FloorRun(floor, kind, input, output, count);
    times[i] = Nanoseconds() - start;
  }
}

static uint64_t LeastTimeOfAll(Floor* floor, int kind, const float* input, float* output, size_t count) {
  uint64_t times[7], least = UINT64_MAX, slowest = 0;
  const int runs = count > (4u << 20) ? 3 : 7;
  FloorTime(floor, kind, input, output, count, runs, times);
  for (int i = 1; i < runs; i++) least = times[i] < least ? times[i] : least;  // the first run warms up
  atomic_store(&floor->control->nanoseconds[floor->rank], least);
  Meet(floor);
  for (int rank = 0; rank < floor->ranks; rank++) {
    const uint64_t theirs = atomic_load(&floor->control->nanoseconds[rank]);
    slowest = theirs > slowest ? theirs : slowest;
  }
  Meet(floor);
  return slowest;
}

// Choose the fastest way of staging for this size. Overwrites the buffers. All ranks see the same times.
void FloorTune(Floor* floor, int kind, const float* input, float* output, size_t count) {
  static const size_t kPieces[] = {1024, 4096, 8192, kMaxPiece};
  uint64_t best = UINT64_MAX;
  size_t piece = floor->piece;
  int whole = 0;
  for (int candidate = 0; candidate < 8; candidate++) {
    floor->piece = kPieces[candidate % 4];
    floor->whole = candidate / 4;
    if (floor->whole && (kind != kAllreduce || count > (1u << 20))) break;
    const uint64_t found = LeastTimeOfAll(floor, kind, input, output, count);
    if (found < best) best = found, piece = floor->piece, whole = floor->whole;
  }
  floor->piece = piece;
  floor->whole = whole;
}
