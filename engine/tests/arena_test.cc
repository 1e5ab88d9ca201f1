// SPDX-License-Identifier: Apache-2.0
// Shared memory arenas: which offset memory has, and which pages stay shared while peers may still write to them.
#include "memory/arena.h"

#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>
#include <utility>

using hvd::Arena;

namespace {

constexpr size_t kPage = 4096;

std::shared_ptr<Arena> MakeArena() {
  hvd::Status status;
  std::shared_ptr<Arena> arena = Arena::Create(&status);
  REQUIRE_MESSAGE(status.ok(), status.text);
  return arena;
}

size_t Reserve(Arena& arena, size_t bytes) {
  hvd::Status status;
  const int64_t offset = arena.Reserve(bytes, &status, Arena::Use::kOutput);
  REQUIRE_MESSAGE(offset >= 0, status.text);
  return static_cast<size_t>(offset);
}

// Return the byte at `offset` as a peer reads it, through the file descriptor.
char At(const Arena& arena, size_t offset) {
  char found = 0;
  REQUIRE(pread(arena.fd(), &found, 1, static_cast<off_t>(offset)) == 1);
  return found;
}

}  // namespace

TEST_CASE("memory has a place only within one region") {
  auto arena = MakeArena();
  const size_t first = Reserve(*arena, 2 * kPage), second = Reserve(*arena, kPage);
  REQUIRE(second == first + 2 * kPage);
  Arena::Pin pin;
  CHECK(arena->PlaceOf(arena->at(first), 2 * kPage, &pin) == static_cast<int64_t>(first));
  CHECK(arena->PlaceOf(arena->at(first + 100), 2 * kPage - 100, &pin) == static_cast<int64_t>(first + 100));
  CHECK(arena->PlaceOf(arena->at(second), kPage, &pin) == static_cast<int64_t>(second));
  CHECK(arena->PlaceOf(arena->at(first + 100), 2 * kPage, &pin) == -1);  // reaches into the next region
  CHECK(arena->PlaceOf(arena->at(second + kPage), 1, &pin) == -1);       // not allocated yet
  CHECK(arena->PlaceOf(arena->at(second), Arena::kExtent, &pin) == -1);
  char elsewhere;
  CHECK(arena->PlaceOf(&elsewhere, 1, &pin) == -1);
  arena->Free(static_cast<int64_t>(first));
  CHECK(arena->PlaceOf(arena->at(first), 1, &pin) == -1);
  CHECK(arena->PlaceOf(arena->at(second), 1, &pin) == static_cast<int64_t>(second));
}

TEST_CASE("a pinned region is not made private, however often it is pinned") {
  auto arena = MakeArena();
  const size_t offset = Reserve(*arena, 2 * kPage);
  std::optional<Arena::Pin> one(std::in_place), other(std::in_place);
  REQUIRE(arena->PlaceOf(arena->at(offset), 10, &*one) >= 0);
  REQUIRE(arena->PlaceOf(arena->at(offset + kPage), 10, &*other) >= 0);
  CHECK_FALSE(arena->MakePrivate(offset, 2 * kPage));
  one.reset();
  CHECK_FALSE(arena->MakePrivate(offset, 2 * kPage));
  std::memset(arena->at(offset), 'x', 2 * kPage);
  CHECK(At(*arena, offset + kPage) == 'x');
  Arena::Pin moved = std::move(*other);
  other.reset();
  CHECK_FALSE(arena->MakePrivate(offset, 2 * kPage));
  moved = Arena::Pin();
  CHECK(arena->MakePrivate(offset, 2 * kPage));
  CHECK(static_cast<char>(*arena->at(offset + kPage)) == 'x');
}

TEST_CASE("a private region has no place, until it is shared again") {
  auto arena = MakeArena();
  const size_t offset = Reserve(*arena, kPage);
  Arena::Pin pin;
  REQUIRE(arena->MakePrivate(offset, kPage));
  CHECK(arena->PlaceOf(arena->at(offset), 1, &pin) == -1);
  std::memset(arena->at(offset), 'p', kPage);
  CHECK(At(*arena, offset) != 'p');
  REQUIRE(arena->MakeShared(offset, kPage));
  CHECK(arena->PlaceOf(arena->at(offset), 1, &pin) == static_cast<int64_t>(offset));
  std::memset(arena->at(offset), 's', kPage);
  CHECK(At(*arena, offset) == 's');
}

TEST_CASE("a pin may outlive its region, and whoever has made the arena") {
  auto arena = MakeArena();
  std::weak_ptr<Arena> watched = arena;
  const size_t offset = Reserve(*arena, kPage);
  {
    Arena::Pin pin;
    REQUIRE(arena->PlaceOf(arena->at(offset), 1, &pin) >= 0);
    arena->Free(static_cast<int64_t>(offset));
    arena->CloseDescriptor();
    arena.reset();
    CHECK_FALSE(watched.expired());
  }
  CHECK(watched.expired());
}

TEST_CASE("a child puts a copy in the place of what was pinned") {
  auto arena = MakeArena();
  const size_t offset = Reserve(*arena, 3 * kPage);
  std::memset(arena->at(offset), 'x', 3 * kPage);
  Arena::Pin pin;
  REQUIRE(arena->PlaceOf(arena->at(offset), 1, &pin) >= 0);
  // Refused because of the pin; the forked child still gets a copy.
  REQUIRE_FALSE(arena->MakePrivate(offset, 3 * kPage));
  const pid_t child = fork();
  if (child == 0) {
    char* mine = reinterpret_cast<char*>(arena->at(offset));
    bool right = Arena::CopyInChild(mine, 3 * kPage) && mine[0] == 'x' && mine[3 * kPage - 1] == 'x';
    std::memset(mine, 'c', 3 * kPage);
    _exit(right ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(static_cast<char>(*arena->at(offset)) == 'x');
  CHECK(At(*arena, offset + 3 * kPage - 1) == 'x');
}
