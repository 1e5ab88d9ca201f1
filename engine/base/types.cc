// SPDX-License-Identifier: Apache-2.0
// Sizes and names of the engine's vocabulary.
#include "base/types.h"

namespace hvd {

size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kUInt8:
    case DType::kInt8:
    case DType::kBool:
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
      return 1;
    case DType::kUInt16:
    case DType::kInt16:
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kInt32:
    case DType::kUInt32:
    case DType::kFloat32:
      return 4;
    case DType::kInt64:
    case DType::kUInt64:
    case DType::kFloat64:
      return 8;
  }
  return 0;  // a value from the wire that is not a dtype
}

const char* NameOf(DType dtype) {
  switch (dtype) {
    case DType::kUInt8:
      return "uint8";
    case DType::kInt8:
      return "int8";
    case DType::kUInt16:
      return "uint16";
    case DType::kInt16:
      return "int16";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kFloat16:
      return "float16";
    case DType::kFloat32:
      return "float32";
    case DType::kFloat64:
      return "float64";
    case DType::kBool:
      return "bool";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat8E4M3:
      return "float8_e4m3fn";
    case DType::kFloat8E5M2:
      return "float8_e5m2";
    case DType::kUInt32:
      return "uint32";
    case DType::kUInt64:
      return "uint64";
  }
  return "unknown";
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
