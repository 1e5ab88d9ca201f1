// SPDX-License-Identifier: Apache-2.0
// Handles and names in flight are created and removed in any order, and objects that are reused show nothing of their
// earlier use.
#include "core/handle.h"

#include <doctest/doctest.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "core/submissions.h"

using hvd::Handle;
using hvd::HandleTable;
using hvd::Operation;
using hvd::Submissions;

TEST_CASE("a handle can be taken once, when it is done") {
  HandleTable table;
  const std::shared_ptr<Handle> handle = table.Create(1);
  CHECK_FALSE(table.TakeDone(handle->id));
  CHECK(table.Find(handle->id) == handle);
  handle->done = true;
  CHECK(table.TakeDone(handle->id) == handle);
  CHECK_FALSE(table.TakeDone(handle->id));
  CHECK_FALSE(table.Find(handle->id));
  table.Forget(handle->id);  // forgetting an unknown handle does nothing
  CHECK(handle.use_count() == 1);
}

TEST_CASE("handles are found under their own numbers, however many came before") {
  HandleTable table;
  int64_t last = 0;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<Handle>> handles;
    for (int i = 0; i < 100; ++i) {
      handles.push_back(table.Create(1));
      CHECK(handles.back()->id == ++last);
    }
    for (const auto& handle : handles) CHECK(table.Find(handle->id) == handle);
    for (size_t i = 0; i < handles.size(); ++i) {
      handles[i]->done = true;
      i % 2 ? table.Forget(handles[i]->id) : static_cast<void>(table.TakeDone(handles[i]->id));
      CHECK(handles[i].use_count() == 1);  // the table holds no reference any more
    }
    for (const auto& handle : handles) CHECK_FALSE(table.Find(handle->id));
  }
}

TEST_CASE("a name may come again when its operation is finished, not before") {
  Submissions submissions;
  submissions.Register(0, {0});
  const auto add = [&submissions](const std::string& name) {
    Submissions::Batch batch = submissions.NewOperations(1);
    CHECK(batch[0]->request == hvd::Request());  // reused objects start empty
    CHECK(batch[0]->slot == hvd::kNoSlot);
    batch[0]->request.name = name;
    batch[0]->request.shape = {1, 2};
    batch[0]->request.group = "group";
    batch[0]->slot = 3;
    return submissions.Add(std::move(batch), 0).ok();
  };
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 100; ++i) CHECK(add("a name that is not short " + std::to_string(i)));
    Submissions::Batch first, second;
    submissions.TakeAll(&first);
    for (int i = 0; i < 100; ++i) CHECK_FALSE(add("a name that is not short " + std::to_string(i)));
    CHECK(add("another"));
    submissions.TakeAll(&second);
    REQUIRE(second.size() == 1);
    for (auto& operation : first) submissions.Finished(std::move(operation));
    CHECK_FALSE(add("another"));
    submissions.Finished(std::move(second[0]));
    auto unknown = std::make_unique<Operation>();
    unknown->request.name = "one that nobody knows";
    submissions.Finished(std::move(unknown));
  }
}
