// SPDX-License-Identifier: Apache-2.0
// Short ways to write down requests and to drive a coordinator in tests.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "agreement/coordinator.h"

namespace hvd::testing {

inline Request Make(OpKind kind, std::string name, std::vector<int64_t> shape = {2}) {
  Request request;
  request.kind = kind;
  request.name = std::move(name);
  request.shape = std::move(shape);
  return request;
}

inline Request Allreduce(std::string name, std::vector<int64_t> shape = {2}) {
  return Make(OpKind::kAllreduce, std::move(name), std::move(shape));
}

inline Request Alltoall(std::string name, std::vector<int64_t> splits, int64_t rows = 8) {
  Request request = Make(OpKind::kAlltoall, std::move(name), {rows, 3});
  request.splits = std::move(splits);
  return request;
}

inline Request Grouped(Request request, std::string group, uint32_t size) {
  request.group = std::move(group);
  request.group_size = size;
  return request;
}

inline Request Join() { return Make(OpKind::kJoin, "join", {}); }

inline Request ProcessSet(OpKind kind, std::string name, std::vector<int64_t> splits) {
  Request request = Make(kind, std::move(name), {});
  request.splits = std::move(splits);
  return request;
}

// Member i sends requests[i]; then everything decidable is decided.
inline std::vector<Record> Run(Coordinator* coordinator, const std::vector<Request>& requests) {
  for (size_t member = 0; member < requests.size(); ++member) {
    coordinator->OnRequest(static_cast<int>(member), requests[member]);
  }
  return coordinator->Decide();
}

// All of `members` members send the same.
inline std::vector<Record> RunAll(Coordinator* coordinator, int members, const Request& request) {
  return Run(coordinator, std::vector<Request>(static_cast<size_t>(members), request));
}

// Batches written as "a b | c": what is fused is between bars; "E:x" is an error, "-7" an evicted slot, "#7" a tensor
// known by its slot alone.
inline std::string Summary(const std::vector<Record>& records) {
  std::string text;
  for (const Record& record : records) {
    if (!text.empty()) text += " | ";
    std::string words;
    for (const Entry& entry : record.entries) {
      words += (words.empty() ? "" : " ") + (entry.cached ? "#" + std::to_string(entry.slot) : entry.request.name);
    }
    for (const std::string& name : record.names) words += (words.empty() ? "E:" : " E:") + name;
    for (uint32_t slot : record.evicted) words += (words.empty() ? "-" : " -") + std::to_string(slot);
    text += words;
  }
  return text;
}

}  // namespace hvd::testing
