// SPDX-License-Identifier: Apache-2.0
// Outputs that callers have freed are reused for later ones, within limits.
#include "memory/output_pool.h"

#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace {

std::shared_ptr<hvd::Arena> MakeArena() {
  hvd::Status status;
  std::shared_ptr<hvd::Arena> arena = hvd::Arena::Create(&status);
  REQUIRE_MESSAGE(status.ok(), status.text);
  return arena;
}

// Return an output in the arena. The second output of a size is placed there.
char* SharedOutput(const std::shared_ptr<hvd::Arena>& arena, size_t bytes) {
  void* ordinary = hvd::AllocateOutput(bytes, arena);
  CHECK(arena->OffsetOf(ordinary, bytes) < 0);
  hvd::FreeOutput(ordinary);
  void* output = hvd::AllocateOutput(bytes, arena);
  CHECK(arena->OffsetOf(output, bytes) >= 0);
  return static_cast<char*>(output);
}

}  // namespace

TEST_CASE("a freed output is used again for one of about its size") {
  hvd::LeaveOutputsToCallers(nullptr);
  void* first = hvd::AllocateOutput(1 << 20);
  REQUIRE(first);
  CHECK(reinterpret_cast<uintptr_t>(first) % 64 == 0);
  std::memset(first, 1, 1 << 20);
  hvd::FreeOutput(first);
  void* smaller = hvd::AllocateOutput(900'000);
  CHECK(smaller == first);
  void* other = hvd::AllocateOutput(900'000);
  CHECK(other != first);
  hvd::FreeOutput(smaller);
  void* much_smaller = hvd::AllocateOutput(200'000);
  CHECK(much_smaller != first);  // reuse would keep a megabyte for a fifth of one
  hvd::FreeOutput(other);
  hvd::FreeOutput(much_smaller);
  hvd::LeaveOutputsToCallers(nullptr);
}

TEST_CASE("outputs of every size can be written to their end and freed") {
  std::vector<void*> outputs;
  // The last one exceeds what the pool ever keeps.
  for (size_t bytes : {0ul, 1ul, 64ul, 100'000ul, 3ul << 20, 200ul << 20}) {
    void* output = hvd::AllocateOutput(bytes);
    REQUIRE(output);
    std::memset(output, 7, bytes);
    outputs.push_back(output);
  }
  for (void* output : outputs) hvd::FreeOutput(output);
  hvd::FreeOutput(nullptr);
  hvd::LeaveOutputsToCallers(nullptr);
}

TEST_CASE("an output that comes again moves to the arena, and is used again there") {
  hvd::LeaveOutputsToCallers(nullptr);
  auto arena = MakeArena();
  char* first = SharedOutput(arena, 100'000);
  // Ordinary memory, because none of this size is free in the arena.
  void* second = hvd::AllocateOutput(100'000, arena);
  CHECK(arena->OffsetOf(second, 1) < 0);
  hvd::FreeOutput(first);
  void* elsewhere = hvd::AllocateOutput(100'000);
  CHECK(arena->OffsetOf(elsewhere, 1) < 0);  // a caller without an arena gets ordinary memory
  CHECK(hvd::AllocateOutput(99'000, arena) == first);
  hvd::AbandonOutput(first);
  void* another = SharedOutput(arena, 100'000);
  CHECK(another != first);  // not reused, because a peer may still write there
  for (void* output : {second, elsewhere, another}) hvd::FreeOutput(output);
  hvd::LeaveOutputsToCallers(nullptr);
}

TEST_CASE("an output in an arena lives on when that is closed, and is not used again") {
  hvd::LeaveOutputsToCallers(nullptr);
  auto arena = MakeArena();
  std::weak_ptr<hvd::Arena> watched = arena;
  char* output = SharedOutput(arena, 50'000);
  std::memset(output, 'x', 50'000);
  arena->CloseDescriptor();
  arena.reset();
  CHECK(output[49'999] == 'x');
  hvd::FreeOutput(output);
  CHECK(watched.expired());
}

TEST_CASE("a forked child keeps its outputs as they were, and so do we") {
  hvd::LeaveOutputsToCallers(nullptr);
  auto arena = MakeArena();
  char* output = SharedOutput(arena, 50'000);
  char* in_flight = SharedOutput(arena, 70'000);
  std::memset(output, 'x', 50'000);
  hvd::HandOverOutput(output);
  int line[2];
  REQUIRE(pipe(line) == 0);
  const pid_t child = fork();
  if (child == 0) {
    char go;
    const bool heard = read(line[0], &go, 1) == 1;
    const bool right = output[0] == 'x' && output[49'999] == 'x';
    output[1] = 'c';
    hvd::FreeOutput(output);
    hvd::FreeOutput(in_flight);
    _exit(heard && right ? 0 : 1);
  }
  std::memset(output, 'y', 50'000);
  std::memset(in_flight, 'z', 70'000);  // peers still reach this memory
  hvd::FreeOutput(output);
  char* next = SharedOutput(arena, 50'000);
  CHECK(next == output);  // its pages are shared again
  std::memset(next, 'n', 50'000);
  REQUIRE(write(line[1], "g", 1) == 1);
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(next[1] == 'n');
  for (void* one : {next, in_flight}) hvd::FreeOutput(one);
  for (int fd : line) close(fd);
  hvd::LeaveOutputsToCallers(nullptr);
}

TEST_CASE("memory to lend lies in the arena, where there is one with room") {
  hvd::LeaveOutputsToCallers(nullptr);
  auto arena = MakeArena();
  CHECK_FALSE(hvd::AllocateSharedOutput(100'000, nullptr));
  CHECK_FALSE(hvd::AllocateSharedOutput(size_t{1} << 33, arena));
  void* home = hvd::AllocateSharedOutput(100'000, arena);
  REQUIRE(home);
  CHECK(arena->OffsetOf(home, 100'000) >= 0);
  CHECK(reinterpret_cast<uintptr_t>(home) % 4096 == 0);
  std::memset(home, 'h', 100'000);
  for (int turn = 0; turn < 3; ++turn) {
    CHECK(hvd::LendOutput(home));
    CHECK(hvd::TakeBackOutput(home));
  }
  char elsewhere;
  CHECK_FALSE(hvd::LendOutput(&elsewhere));
  CHECK_FALSE(hvd::TakeBackOutput(&elsewhere));
  hvd::FreeOutput(home);
  hvd::LeaveOutputsToCallers(nullptr);
  hvd::Arena::Pin pin;
  CHECK(arena->PlaceOf(home, 1, &pin) == -1);  // it was returned to the arena
}

TEST_CASE("what is lent when a child comes serves no more afterwards, and what is not lent does") {
  hvd::LeaveOutputsToCallers(nullptr);
  auto arena = MakeArena();
  char* lent = static_cast<char*>(hvd::AllocateSharedOutput(50'000, arena));
  char* at_home = static_cast<char*>(hvd::AllocateSharedOutput(50'000, arena));
  char* pinned = static_cast<char*>(hvd::AllocateSharedOutput(50'000, arena));
  REQUIRE(hvd::LendOutput(lent));
  REQUIRE(hvd::LendOutput(pinned));
  hvd::Arena::Pin pin, none;
  REQUIRE(arena->PlaceOf(pinned, 50'000, &pin) >= 0);
  std::memset(lent, 'l', 50'000);
  std::memset(pinned, 'p', 50'000);
  const pid_t child = fork();
  if (child == 0) {
    bool right = lent[49'999] == 'l' && pinned[49'999] == 'p';
    std::memset(lent, 'c', 50'000);
    std::memset(pinned, 'c', 50'000);
    right = right && !hvd::LendOutput(at_home) && !hvd::TakeBackOutput(lent);
    for (void* one : {lent, at_home, pinned}) hvd::FreeOutput(one);
    _exit(right ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(lent[0] == 'l');
  CHECK(pinned[0] == 'p');
  CHECK(arena->PlaceOf(lent, 1, &none) == -1);
  CHECK_FALSE(hvd::TakeBackOutput(lent));
  CHECK(hvd::TakeBackOutput(pinned));
  CHECK(hvd::LendOutput(at_home));
  for (void* one : {lent, at_home, pinned}) hvd::FreeOutput(one);
  hvd::LeaveOutputsToCallers(nullptr);
}

TEST_CASE("what is lent when the arena closes is its caller's, and is lent no more") {
  hvd::LeaveOutputsToCallers(nullptr);
  auto arena = MakeArena();
  char* lent = static_cast<char*>(hvd::AllocateSharedOutput(50'000, arena));
  char* at_home = static_cast<char*>(hvd::AllocateSharedOutput(50'000, arena));
  REQUIRE(hvd::LendOutput(lent));
  std::memset(lent, 'l', 50'000);
  hvd::LeaveOutputsToCallers(arena.get());
  arena->CloseDescriptor();
  CHECK(lent[49'999] == 'l');
  std::memset(lent, 'm', 50'000);
  CHECK_FALSE(hvd::LendOutput(at_home));
  CHECK_FALSE(hvd::TakeBackOutput(lent));
  std::weak_ptr<hvd::Arena> watched = arena;
  arena.reset();
  for (void* one : {lent, at_home}) hvd::FreeOutput(one);
  CHECK(watched.expired());
}
