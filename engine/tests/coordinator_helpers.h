// SPDX-License-Identifier: Apache-2.0
// Helpers of the coordinator tests: short ways to write requests and to drive a coordinator.
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

// Send requests[i] as member i, then return all records that can be decided.
inline std::vector<Record> Run(Coordinator* coordinator, const std::vector<Request>& requests) {
  for (size_t member = 0; member < requests.size(); ++member) {
    coordinator->OnRequest(static_cast<int>(member), requests[member]);
  }
  return coordinator->Decide();
}

// Send `request` as each of `members` members, then return the decided records.
inline std::vector<Record> RunAll(Coordinator* coordinator, int members, const Request& request) {
  return Run(coordinator, std::vector<Request>(static_cast<size_t>(members), request));
}

// Return records as text: "a b | c" is two batches, in which a and b are fused. "E:x" is an error of x, "-7" an evicted
// slot, "#7" a tensor that is named by its slot alone.
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
