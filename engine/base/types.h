// SPDX-License-Identifier: Apache-2.0
// Types shared by every part of the engine: dtypes, reduce operations, kinds of collectives, status.
#pragma once

#include <hvd/engine.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

namespace hvd {

// The values are those of the C API, so that its callers and the engine use one numbering.
enum class DType : uint8_t {
  kUInt8 = HVD_UINT8,
  kInt8 = HVD_INT8,
  kUInt16 = HVD_UINT16,
  kInt16 = HVD_INT16,
  kInt32 = HVD_INT32,
  kInt64 = HVD_INT64,
  kFloat16 = HVD_FLOAT16,
  kFloat32 = HVD_FLOAT32,
  kFloat64 = HVD_FLOAT64,
  kBool = HVD_BOOL,
  kBFloat16 = HVD_BFLOAT16,
  kFloat8E4M3 = HVD_FLOAT8_E4M3,
  kFloat8E5M2 = HVD_FLOAT8_E5M2,
  kUInt32 = HVD_UINT32,
  kUInt64 = HVD_UINT64,
};
constexpr int kDTypeCount = HVD_DTYPE_COUNT;

// Integer types whose sum may overflow and for which a wider type exists.
constexpr DType kNarrowIntegers[] = {DType::kUInt8, DType::kInt8,   DType::kUInt16,
                                     DType::kInt16, DType::kUInt32, DType::kInt32};

enum class ReduceOp : uint8_t {
  kAverage = HVD_AVERAGE,
  kSum = HVD_SUM,
  kAdasum = HVD_ADASUM,
  kMin = HVD_MIN,
  kMax = HVD_MAX,
  kProduct = HVD_PRODUCT,
};

enum class OpKind : uint8_t {
  kAllreduce = HVD_ALLREDUCE,
  kAllgather = HVD_ALLGATHER,
  kBroadcast = HVD_BROADCAST,
  kAlltoall = HVD_ALLTOALL,
  kReducescatter = HVD_REDUCESCATTER,
  kBarrier = HVD_BARRIER,
  kJoin = HVD_JOIN,
  kAddProcessSet = HVD_ADD_PROCESS_SET,
  kRemoveProcessSet = HVD_REMOVE_PROCESS_SET,
  // Point-to-point transfers. They need no negotiation and have their own functions in the C API.
  kSend,
  kReceive,
};

// How ranks on different hosts exchange the data of a reduction. The leader puts its choice into the negotiated record,
// so that all ranks use the same algorithm.
enum class HostAlgorithm : uint8_t {
  // All pairs of hosts exchange data: each host owns a share, sums it in host order and sends the result to all.
  kDirect = 0,
  // Only adjacent hosts exchange data: sums travel from the first host to the last, and results around the ring.
  kRing = 1,
  kDoubling = 2,  // recursive halving, then doubling: sums form a binary tree
};
constexpr HostAlgorithm kLastHostAlgorithm = HostAlgorithm::kDoubling;
// Return true if every element is summed in host order. All algorithms for which this holds give identical bits.
constexpr bool SumsInOrder(HostAlgorithm algorithm) { return algorithm != HostAlgorithm::kDoubling; }

constexpr OpKind kLastAgreed =
    OpKind::kRemoveProcessSet;  // the last kind that ranks negotiate; later kinds involve two ranks only
// Return true for collectives that move the elements of a tensor.
constexpr bool MovesTensor(OpKind kind) { return kind <= OpKind::kReducescatter; }

size_t SizeOf(DType dtype);
const char* NameOf(DType dtype);              // "float32"
const char* NameOf(OpKind kind);              // "ALLREDUCE", the spelling in the timeline and in mismatch errors
const char* NameOf(ReduceOp op);              // "SUM"
const char* NameOf(HostAlgorithm algorithm);  // "RING"

// Return true if two scaling factors are interchangeable. Compare bits, because 0 and -0 scale differently; any two NaN
// match.
inline bool SameFactor(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b); }

// Outcome of a call. The code decides which exception the user sees, because it tells which side caused the error.
enum class Code : int32_t {
  kOk = HVD_OK,
  kInProgress = HVD_IN_PROGRESS,
  kInvalid = HVD_INVALID,                 // an argument of this caller is wrong; raised as ValueError
  kMismatch = HVD_MISMATCH,               // ranks disagree about one tensor; the engine stays usable
  kFailed = HVD_FAILED,                   // a peer or a connection was lost, or the engine was shut down
  kNotImplemented = HVD_NOT_IMPLEMENTED,  // no backend supports this combination
  kTimeout = HVD_TIMEOUT,
};

struct Status {
  Code code = Code::kOk;
  std::string text;
  int lost_rank = -1;  // for kFailed, the rank that caused the failure; -1 if none is known

  bool ok() const { return code == Code::kOk; }
  static Status Ok() { return {}; }
  static Status Invalid(std::string text) { return {Code::kInvalid, std::move(text), -1}; }
  static Status Mismatch(std::string text) { return {Code::kMismatch, std::move(text), -1}; }
  static Status Failed(std::string text, int lost_rank = -1) { return {Code::kFailed, std::move(text), lost_rank}; }
};

}  // namespace hvd
