// SPDX-License-Identifier: Apache-2.0
#include "agreement/entry_cache.h"

#include <doctest/doctest.h>

#include "tests/coordinator_helpers.h"

namespace hvd {
namespace {

Entry At(uint32_t slot, const std::string& name, int64_t rows = 2) {
  Entry entry;
  entry.slot = slot;
  entry.request = testing::Allreduce(name, {rows});
  return entry;
}

TEST_CASE("entry cache: a tensor is found by its slot and by its name until it is evicted") {
  EntryCache cache;
  CHECK(cache.Find(3) == nullptr);
  CHECK(cache.Find("x") == nullptr);
  cache.Put(At(3, "x"));
  CHECK(cache.Find(3)->request.name == "x");
  CHECK(cache.Find("x") == cache.Find(3));
  cache.Evict(3);
  cache.Evict(3);  // evicting an empty slot does nothing
  CHECK(cache.Find(3) == nullptr);
  CHECK(cache.Find("x") == nullptr);
}

TEST_CASE("entry cache: a slot may outlive its name") {
  EntryCache cache;
  cache.Put(At(3, "x", 2));
  cache.ForgetName(3);
  CHECK(cache.Find("x") == nullptr);
  CHECK(cache.Find(3)->request.name == "x");
  cache.Put(At(4, "x", 9));
  cache.ForgetName(3);
  cache.Evict(3);
  CHECK(cache.Find("x")->slot == 4);
}

TEST_CASE("entry cache: a name means its latest slot, and older ones go without taking it along") {
  EntryCache cache;
  cache.Put(At(3, "x", 2));
  cache.Put(At(4, "x", 9));
  CHECK(cache.Find("x")->slot == 4);
  CHECK(cache.Find(3)->request.shape[0] == 2);
  cache.Evict(3);
  CHECK(cache.Find("x")->slot == 4);
}

TEST_CASE("entry cache: a slot that is given to another name forgets the first") {
  EntryCache cache;
  cache.Put(At(3, "x"));
  cache.Put(At(3, "y"));
  CHECK(cache.Find("x") == nullptr);
  CHECK(cache.Find("y")->slot == 3);
  cache.Put(At(3, "y", 7));
  CHECK(cache.Find("y")->request.shape[0] == 7);
}

TEST_CASE("entry cache: what is shared outlives its slot") {
  EntryCache cache;
  CHECK_FALSE(static_cast<bool>(cache.Share(3)));
  cache.Put(At(3, "x"));
  const std::shared_ptr<const Entry> shared = cache.Share(3);
  cache.Evict(3);
  CHECK(shared->request.name == "x");
}

}  // namespace
}  // namespace hvd
