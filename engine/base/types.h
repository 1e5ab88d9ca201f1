// SPDX-License-Identifier: Apache-2.0
// The vocabulary shared by every part of the engine: dtypes, reduce operations, kinds of collectives, status.
#pragma once

#include <hvd/engine.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

namespace hvd {

// Numbers are those of the C API, whose clients speak of the same things.
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

// Integers of which a sum may need a wider type, where there is one.
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
  // Point to point: never agreed upon, only between two ranks; the C API has functions of their own for them.
  kSend,
  kReceive,
};

// How the ranks of several hosts exchange what they reduce. The leader writes it into the record, so that no rank ever
// chooses for itself.
enum class HostAlgorithm : uint8_t {
  kDirect = 0,    // every pair of hosts: each owns a share, sums it in order and shows the result
  kRing = 1,      // neighbours only: sums travel from the first host to the last, results around the ring
  kDoubling = 2,  // recursive halving, then doubling: a binary tree of sums
};
constexpr HostAlgorithm kLastHostAlgorithm = HostAlgorithm::kDoubling;
// Whether every element is summed in the order of the hosts. Algorithms that do so give the same bits.
constexpr bool SumsInOrder(HostAlgorithm algorithm) { return algorithm != HostAlgorithm::kDoubling; }

constexpr OpKind kLastAgreed =
    OpKind::kRemoveProcessSet;  // of what ranks agree upon; the rest stays between two of them
// Collectives that move the elements of a tensor; all others have none.
constexpr bool MovesTensor(OpKind kind) { return kind <= OpKind::kReducescatter; }

size_t SizeOf(DType dtype);
const char* NameOf(DType dtype);              // "float32"
const char* NameOf(OpKind kind);              // "ALLREDUCE", as the timeline and the mismatch texts spell it
const char* NameOf(ReduceOp op);              // "SUM"
const char* NameOf(HostAlgorithm algorithm);  // "RING"

// Whether two ranks, or two tensors, scale alike. By bits, because 0 and -0 do not; all of the many NaN do.
inline bool SameFactor(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b); }

// Who is to blame decides which class of exception users see.
enum class Code : int32_t {
  kOk = HVD_OK,
  kInProgress = HVD_IN_PROGRESS,
  kInvalid = HVD_INVALID,                 // this caller's argument is wrong: ValueError
  kMismatch = HVD_MISMATCH,               // ranks disagree about one tensor; the engine stays usable
  kFailed = HVD_FAILED,                   // a peer or a link is gone, or the engine was shut down
  kNotImplemented = HVD_NOT_IMPLEMENTED,  // a combination that no backend offers
  kTimeout = HVD_TIMEOUT,
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
