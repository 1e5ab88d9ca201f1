// SPDX-License-Identifier: Apache-2.0
// The checks that members agree: their order and their error texts.
#include "agreement/validate.h"

#include <doctest/doctest.h>

#include <cmath>

#include "tests/coordinator_helpers.h"

namespace hvd {
namespace {

using testing::Alltoall;
using testing::Grouped;
using testing::Make;
using testing::ProcessSet;

Reports From(const std::vector<Request>& requests) {
  Reports reports(requests.size());
  for (size_t member = 0; member < requests.size(); ++member) reports.Add(member, requests[member]);
  return reports;
}

// Compare two requests; members 0 and 1 are the global ranks 2 and 5.
Status Compare(const Request& first, const Request& second) { return Validate(From({first, second}), {2, 5}); }

Request Scaled(OpKind kind, double prescale, double postscale) {
  Request request = Make(kind, "x");
  request.prescale = prescale;
  request.postscale = postscale;
  return request;
}

Request Typed(OpKind kind, DType dtype) {
  Request request = Make(kind, "x");
  request.dtype = dtype;
  return request;
}

Request Reduced(OpKind kind, ReduceOp op) {
  Request request = Make(kind, "x");
  request.op = op;
  return request;
}

Request Rooted(int root) {
  Request request = Make(OpKind::kBroadcast, "x");
  request.root = root;
  return request;
}

Request OnDevice(OpKind kind, int device) {
  Request request = Make(kind, "x");
  request.device = device;
  return request;
}

const OpKind kReduce = OpKind::kAllreduce;
const OpKind kGather = OpKind::kAllgather;
const OpKind kCast = OpKind::kBroadcast;
const OpKind kScatter = OpKind::kReducescatter;
const OpKind kAdd = OpKind::kAddProcessSet;
const OpKind kRemove = OpKind::kRemoveProcessSet;

TEST_CASE("what members may not differ in, and what users read then") {
  const struct {
    Request first, second;
    const char* text;
  } cases[] = {
      {Typed(kReduce, DType::kFloat32), Typed(kReduce, DType::kFloat64),
       "Mismatched data types: tensor 'x' is float32 on rank 2 but float64 on rank 5. "
       "Every rank must submit it with the same type."},
      {Make(kReduce, "x"), Make(kGather, "x"),
       "Mismatched operations: tensor 'x' is submitted to ALLREDUCE on rank 2 but ALLGATHER on rank 5. "},
      {Make(OpKind::kBarrier, "x", {}), Typed(kReduce, DType::kBool), "Mismatched operations: "},
      {Typed(kReduce, DType::kBool), Make(OpKind::kBarrier, "x", {}), "Mismatched operations: "},
      {Make(kReduce, "x", {2, 3}), Make(kReduce, "x", {2, 4}),
       "Mismatched ALLREDUCE tensor shapes: tensor 'x' has shape [2, 3] on rank 2 but [2, 4] on rank 5. "},
      {Make(kReduce, "x", {}), Make(kReduce, "x", {1}),
       "Mismatched ALLREDUCE tensor shapes: tensor 'x' has shape [] on rank 2 but [1] on rank 5. "},
      {Make(kCast, "x", {2}), Make(kCast, "x", {3}), "Mismatched BROADCAST tensor shapes: "},
      {Make(kScatter, "x", {2}), Make(kScatter, "x", {3}), "Mismatched REDUCESCATTER tensor shapes: "},
      {Make(kGather, "x", {2, 3}), Make(kGather, "x", {2, 4}), "Mismatched ALLGATHER tensor shapes: "},
      {Make(kGather, "x", {2, 3}), Make(kGather, "x", {2}), "Mismatched ALLGATHER tensor shapes: "},
      {Make(kGather, "x", {2}), Make(kGather, "x", {}), "Mismatched ALLGATHER tensor shapes: "},
      {Alltoall("x", {1, 1}), Make(OpKind::kAlltoall, "x", {8, 4}), "Mismatched ALLTOALL tensor shapes: "},
      {Scaled(kReduce, 1, 0.5), Scaled(kReduce, 1, 1),
       "Mismatched prescale and/or postscale factors: tensor 'x' has prescale 1 and postscale 0.5 on rank 2 but "
       "prescale 1 and postscale 1 on rank 5. "},
      {Scaled(kScatter, 2, 1), Scaled(kScatter, 1, 1), "Mismatched prescale and/or postscale factors: "},
      {Scaled(kReduce, 0.0, std::nan("")), Scaled(kReduce, -0.0, 1),
       "Mismatched prescale and/or postscale factors: tensor 'x' has prescale 0 and postscale nan on rank 2 but "
       "prescale -0 and postscale 1 on rank 5. "},
      {Scaled(kReduce, 0.1, 1), Scaled(kReduce, std::nextafter(0.1, 1), 1),
       "Mismatched prescale and/or postscale factors: tensor 'x' has prescale 0.1 and postscale 1 on rank 2 but "
       "prescale 0.10000000000000002 and postscale 1 on rank 5. "},
      {Reduced(kReduce, ReduceOp::kSum), Reduced(kReduce, ReduceOp::kMax),
       "Mismatched reduction operation: tensor 'x' is reduced by SUM on rank 2 but MAX on rank 5. "},
      {Rooted(2), Rooted(5), "Mismatched BROADCAST root ranks: tensor 'x' has root rank 2 on rank 2 but 5 on rank 5. "},
      {OnDevice(kReduce, -1), OnDevice(kReduce, 0),
       "Mismatched ALLREDUCE CPU/GPU device selection: tensor 'x' is on the CPU on rank 2 but a GPU on rank 5. "},
      {OnDevice(kGather, 1), OnDevice(kGather, -1), "Mismatched ALLGATHER CPU/GPU device selection: "},
      {ProcessSet(kAdd, "ps", {64, 0, 1}), ProcessSet(kAdd, "ps", {64, 0, 2}),
       "Mismatched process set: 'ps' has ranks [0, 1] on rank 2 but ranks [0, 2] on rank 5. "},
      {ProcessSet(kRemove, "ps", {1}), ProcessSet(kRemove, "ps", {2}),
       "Mismatched process set: 'ps' has id [1] on rank 2 but id [2] on rank 5. "},
      {ProcessSet(kAdd, "ps", {}), ProcessSet(kAdd, "ps", {}), "Mismatched process set: "},
      {ProcessSet(kRemove, "ps", {}), ProcessSet(kRemove, "ps", {}), "Mismatched process set: "},
  };
  for (const auto& c : cases) {
    const Status status = Compare(c.first, c.second);
    CHECK(status.code == Code::kMismatch);
    CHECK(status.text.substr(0, std::string(c.text).size()) == c.text);
  }
}

TEST_CASE("what is wrong on every member alike") {
  CHECK(Compare(Make(kGather, "x", {}), Make(kGather, "x", {})).text ==
        "ALLGATHER cannot take a scalar: tensor 'x' has no first dimension on rank 2. Reshape it to [1].");
  CHECK(Compare(Make(kScatter, "x", {}), Make(kScatter, "x", {})).code == Code::kMismatch);
  CHECK(Compare(Make(OpKind::kAlltoall, "x", {}), Make(OpKind::kAlltoall, "x", {})).code == Code::kMismatch);
  for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct, ReduceOp::kAdasum}) {
    CHECK(Compare(Reduced(kScatter, op), Reduced(kScatter, op)).code == Code::kMismatch);
    CHECK(Compare(Reduced(kScatter, ReduceOp::kSum), Reduced(kScatter, op)).text ==
          std::string("REDUCESCATTER supports only Sum and Average: tensor 'x' is reduced by ") + NameOf(op) +
              " on rank 5.");
    CHECK(Compare(Reduced(kReduce, op), Reduced(kReduce, op)).ok());
  }
  const std::vector<std::vector<int64_t>> bad_splits = {{}, {8}, {1, 1, 1}, {8, 1}, {-1, 2}, {INT64_MAX, INT64_MAX}};
  for (const auto& splits : bad_splits) {
    const Status status = Compare(Alltoall("x", {4, 4}), Alltoall("x", splits));
    CHECK(status.code == Code::kMismatch);
    CHECK(status.text.substr(0, 40) == "Mismatched ALLTOALL splits: tensor 'x' h");
  }
}

TEST_CASE("what members may differ in") {
  CHECK(Compare(Make(kGather, "x", {0, 3}), Make(kGather, "x", {7, 3})).ok());
  CHECK(Compare(Alltoall("x", {0, 8}, 8), Alltoall("x", {1, 1}, 5)).ok());
  CHECK(Compare(Reduced(kScatter, ReduceOp::kSum), Reduced(kScatter, ReduceOp::kAverage)).ok());
  CHECK(Compare(OnDevice(kReduce, 0), OnDevice(kReduce, 1)).ok());
  CHECK(Compare(ProcessSet(kAdd, "ps", {64, 0, 1}), ProcessSet(kAdd, "ps", {128, 0, 1})).ok());
  Request barrier = Make(OpKind::kBarrier, "b", {3});
  barrier.dtype = DType::kBool;
  CHECK(Compare(Make(OpKind::kBarrier, "b", {}), barrier).ok());
}

TEST_CASE("the first check that fails is the one reported") {
  // Each step repairs the field that the previous error named.
  Request first = Make(kReduce, "x", {2});
  Request second = Make(kCast, "x", {3});
  second.dtype = DType::kInt8;
  second.prescale = 3;
  second.op = ReduceOp::kMin;
  second.device = 0;
  const auto starts_with = [&](const std::string& text) {
    return Compare(first, second).text.substr(0, text.size()) == text;
  };
  CHECK(starts_with("Mismatched data types"));
  second.dtype = first.dtype;
  CHECK(starts_with("Mismatched operations"));
  second.kind = first.kind;
  CHECK(starts_with("Mismatched ALLREDUCE tensor shapes"));
  second.shape = first.shape;
  CHECK(starts_with("Mismatched prescale and/or postscale factors"));
  second.prescale = first.prescale;
  CHECK(starts_with("Mismatched reduction operation"));
  second.op = first.op;
  CHECK(starts_with("Mismatched ALLREDUCE CPU/GPU device selection"));
  second.device = first.device;
  CHECK(Compare(first, second).ok());
}

TEST_CASE("factors that are no numbers agree, whatever their bits") {
  CHECK(Compare(Scaled(OpKind::kAllreduce, std::nan(""), 1), Scaled(OpKind::kAllreduce, -std::nan("1"), 1)).ok());
  CHECK_FALSE(Compare(Scaled(OpKind::kAllreduce, std::nan(""), 1), Scaled(OpKind::kAllreduce, 1, 1)).ok());
}

TEST_CASE("the disagreement is found wherever it is, and joined members are not asked") {
  for (size_t odd = 1; odd < 4; ++odd) {
    std::vector<Request> requests(4, Make(kReduce, "x"));
    requests[odd].shape = {9};
    const Status status = Validate(From(requests), {0, 1, 2, 3});
    CHECK(status.text.find("[9] on rank " + std::to_string(odd)) != std::string::npos);
  }
  Reports reports(3);
  reports.Add(1, Make(kReduce, "x"));
  CHECK(Validate(reports, {0, 1, 2}).ok());
  Request other = Make(kReduce, "x", {9});
  reports.Add(2, other);
  CHECK(Validate(reports, {0, 1, 2}).text.find("[2] on rank 1") != std::string::npos);
}

TEST_CASE("groups must be the same everywhere") {
  const Request alone = Make(kReduce, "x");
  CHECK(ValidateGroup(From({Grouped(alone, "g", 2), Grouped(alone, "g", 2)}), {0, 1}).ok());
  CHECK(ValidateGroup(From({Grouped(alone, "g", 2), alone}), {0, 1}).text ==
        "Mismatched groups: tensor 'x' is in group 'g' of 2 on rank 0 but no group on rank 1. "
        "Every rank must submit the same tensors as one group.");
  CHECK(ValidateGroup(From({Grouped(alone, "g", 2), Grouped(alone, "g", 3)}), {0, 1}).code == Code::kMismatch);
}

TEST_CASE("sizes that only the leader knows") {
  CHECK(SizesOf(From({Make(kGather, "x", {4, 2}), Make(kGather, "x", {0, 2})})) == std::vector<int64_t>{4, 0});
  CHECK(SizesOf(From({Alltoall("x", {1, 2}), Alltoall("x", {6, 0})})) == std::vector<int64_t>{6, 1, 2, 6, 0});
  CHECK(SizesOf(From({Make(kReduce, "x"), Make(kReduce, "x")})).empty());
}

TEST_CASE("equal descriptions are stored once, whoever sends them") {
  Reports reports(64);
  for (size_t member = 0; member < 64; ++member) reports.Add(member, OnDevice(kReduce, static_cast<int>(member % 8)));
  CHECK(reports.distinct().size() == 8);
  CHECK(reports.Of(13).device == 5);
}

}  // namespace
}  // namespace hvd
