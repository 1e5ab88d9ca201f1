// SPDX-License-Identifier: Apache-2.0
#include "capi/operations.h"

#include <cstddef>
#include <string>

namespace hvd {
namespace {

// Return the wire type; a field that an older client does not have counts as 0.
int32_t WireOf(const hvd_op& op) {
  return op.size >= offsetof(hvd_op, wire_dtype) + sizeof op.wire_dtype ? op.wire_dtype : 0;
}

}  // namespace

int32_t DeviceOf(const hvd_op& op) { return op.size >= offsetof(hvd_op, stream) + sizeof op.stream ? op.device : -1; }
uint64_t StreamOf(const hvd_op& op) { return op.size >= offsetof(hvd_op, stream) + sizeof op.stream ? op.stream : 0; }

const hvd_op& OpAt(const hvd_op* ops, int32_t i) {
  return *reinterpret_cast<const hvd_op*>(reinterpret_cast<const char*>(ops) + static_cast<size_t>(i) * ops->size);
}

Status CheckOp(const hvd_op& op) {
  if (op.dtype < 0 || op.dtype >= kDTypeCount) return Status::Invalid("unknown dtype " + std::to_string(op.dtype));
  if (op.kind < 0 || op.kind > static_cast<int>(kLastAgreed)) return Status::Invalid("unknown kind of operation");
  if (op.reduce_op < 0 || op.reduce_op > static_cast<int>(ReduceOp::kProduct)) {
    return Status::Invalid("unknown reduce operation " + std::to_string(op.reduce_op));
  }
  const int32_t wire = WireOf(op);
  const bool half = wire == static_cast<int>(DType::kFloat16) || wire == static_cast<int>(DType::kBFloat16);
  if (wire && !half) return Status::Invalid("tensors travel as float16 or bfloat16, not as " + std::to_string(wire));
  if (!op.name || !*op.name) return Status::Invalid("an operation needs a name");
  bool empty = !MovesTensor(static_cast<OpKind>(op.kind));  // joins and process sets have no elements
  for (int32_t i = 0; i < op.ndim; ++i) {
    if (op.shape[i] < 0) return Status::Invalid("a dimension is negative");
    empty |= op.shape[i] == 0;
  }
  if (!op.input && !empty) {  // happens, for example, with fake tensors of torch
    return Status::Invalid("tensor '" + std::string(op.name) +
                           "' has no memory of its own; pass one that holds numbers");
  }
  return Status::Ok();
}

void ConvertOp(const hvd_op& op, const World& world, int32_t process_set, const char* group, int32_t count,
               Operation* operation) {
  Request& request = operation->request;
  request.kind = static_cast<OpKind>(op.kind);
  request.dtype = static_cast<DType>(op.dtype);
  if (request.kind == OpKind::kAllreduce && request.dtype == DType::kFloat32 && WireOf(op) && DeviceOf(op) < 0 &&
      world.compresses()) {
    request.dtype = static_cast<DType>(WireOf(op));  // the other ranks see the type on the wire as the tensor's type
    operation->wide = true;
  }
  request.op = static_cast<ReduceOp>(op.reduce_op);
  request.root = op.root;
  request.device = DeviceOf(op);
  request.prescale = op.prescale;
  request.postscale = op.postscale;
  request.name = op.name;
  request.shape.assign(op.shape, op.shape + op.ndim);
  request.splits.assign(op.splits, op.splits + op.nsplits);
  if (group) {
    request.group = group;
    request.group_size = static_cast<uint32_t>(count);
  }
  operation->process_set = process_set;
  operation->input = static_cast<const std::byte*>(op.input);
  operation->output = static_cast<std::byte*>(op.output);
  if (op.allocate) {
    operation->allocate = [call = op.allocate, context = op.allocate_context](const std::vector<int64_t>& shape) {
      return call(context, shape.data(), static_cast<int32_t>(shape.size()));
    };
  }
}

bool AreOnOneStream(const hvd_op& one, const hvd_op& other) {
  return DeviceOf(one) == DeviceOf(other) && StreamOf(one) == StreamOf(other);
}

}  // namespace hvd
