// SPDX-License-Identifier: Apache-2.0
// Sizes and names of the types in types.h.
#include "base/types.h"

namespace hvd {

size_t SizeOf(DType dtype) { return hvd_item_bytes(static_cast<int32_t>(dtype)); }

const char* NameOf(DType dtype) {
  switch (static_cast<int32_t>(dtype)) {
#define HVD_NAME(id, number, name, bytes, floating) \
  case id:                                          \
    return name;
    HVD_DTYPES(HVD_NAME)
#undef HVD_NAME
    default:
      return "unknown";
  }
}

const char* NameOf(OpKind kind) {
  switch (kind) {
    case OpKind::kAllreduce:
      return "ALLREDUCE";
    case OpKind::kAllgather:
      return "ALLGATHER";
    case OpKind::kBroadcast:
      return "BROADCAST";
    case OpKind::kAlltoall:
      return "ALLTOALL";
    case OpKind::kReducescatter:
      return "REDUCESCATTER";
    case OpKind::kBarrier:
      return "BARRIER";
    case OpKind::kJoin:
      return "JOIN";
    case OpKind::kAddProcessSet:
      return "ADD_PROCESS_SET";
    case OpKind::kRemoveProcessSet:
      return "REMOVE_PROCESS_SET";
    case OpKind::kSend:
      return "SEND";
    case OpKind::kReceive:
      return "RECEIVE";
  }
  return "UNKNOWN";
}

const char* NameOf(HostAlgorithm algorithm) {
  switch (algorithm) {
    case HostAlgorithm::kDirect:
      return "DIRECT";
    case HostAlgorithm::kRing:
      return "RING";
    case HostAlgorithm::kDoubling:
      return "DOUBLING";
  }
  return "UNKNOWN";
}

const char* NameOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kAverage:
      return "AVERAGE";
    case ReduceOp::kSum:
      return "SUM";
    case ReduceOp::kAdasum:
      return "ADASUM";
    case ReduceOp::kMin:
      return "MIN";
    case ReduceOp::kMax:
      return "MAX";
    case ReduceOp::kProduct:
      return "PRODUCT";
  }
  return "UNKNOWN";
}

}  // namespace hvd
