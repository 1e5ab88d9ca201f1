// SPDX-License-Identifier: Apache-2.0
// The vocabulary shared by every part of the engine: dtypes, reduce operations, kinds of collectives, status.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

namespace hvd {

// Values 0-9 are Horovod's own ids and part of the wire format; the rest are ours.
enum class DType : uint8_t {
  kUInt8 = 0,
  kInt8 = 1,
  kUInt16 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBool = 9,
  kBFloat16 = 10,
  kFloat8E4M3 = 11,  // the "fn" variant: no infinities
  kFloat8E5M2 = 12,
  kUInt32 = 13,
  kUInt64 = 14,
};
constexpr int kDTypeCount = 15;

enum class ReduceOp : uint8_t { kAverage = 0, kSum = 1, kAdasum = 2, kMin = 3, kMax = 4, kProduct = 5 };

enum class OpKind : uint8_t {
  kAllreduce = 0,
  kAllgather = 1,
  kBroadcast = 2,
  kAlltoall = 3,
  kReducescatter = 4,
  kBarrier = 5,
  kJoin = 6,
  kAddProcessSet = 7,
  kRemoveProcessSet = 8,
  kSend = 9,  // point to point: never agreed upon, only between two ranks
  kReceive = 10,
};

size_t SizeOf(DType dtype);
const char* NameOf(DType dtype);  // "float32"
const char* NameOf(OpKind kind);  // "ALLREDUCE", as the timeline and the mismatch texts spell it
const char* NameOf(ReduceOp op);  // "SUM"

// Whether two ranks, or two tensors, scale alike. By bits, because 0 and -0 do not; all of the many NaN do.
inline bool SameFactor(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b); }

// Who is to blame decides which class of exception users see.
enum class Code : int32_t {
  kOk = 0,
  kInProgress = 1,
  kInvalid = 2,         // this caller's argument is wrong: ValueError
  kMismatch = 3,        // ranks disagree about one tensor; the engine stays usable
  kFailed = 4,          // a peer or a link is gone, or the engine was shut down
  kNotImplemented = 5,  // a combination that no backend offers
  kTimeout = 6,
};

struct Status {
  Code code = Code::kOk;
  std::string text;
  int lost_rank = -1;  // the peer to blame for kFailed, where one is

  bool ok() const { return code == Code::kOk; }
  static Status Ok() { return {}; }
  static Status Invalid(std::string text) { return {Code::kInvalid, std::move(text), -1}; }
  static Status Mismatch(std::string text) { return {Code::kMismatch, std::move(text), -1}; }
  static Status Failed(std::string text, int lost_rank = -1) { return {Code::kFailed, std::move(text), lost_rank}; }
};

}  // namespace hvd
