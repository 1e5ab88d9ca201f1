// SPDX-License-Identifier: Apache-2.0
#include "bindings/xla/operations.h"

#include <algorithm>
#include <charconv>

namespace hvd::xla {
namespace {

enum { kUnknownDType = -1 };

// Length of the checksum at the end of a group's contents; see horovod/common/group_contents.py.
constexpr size_t kChecksumDigits = 8;

// Return the hvd_dtype for an XLA type.
int32_t DTypeOf(XLA_FFI_DataType dtype) {
  switch (dtype) {
    case XLA_FFI_DataType_U8:
      return HVD_UINT8;
    case XLA_FFI_DataType_S8:
      return HVD_INT8;
    case XLA_FFI_DataType_U16:
      return HVD_UINT16;
    case XLA_FFI_DataType_S16:
      return HVD_INT16;
    case XLA_FFI_DataType_S32:
      return HVD_INT32;
    case XLA_FFI_DataType_S64:
      return HVD_INT64;
    case XLA_FFI_DataType_F16:
      return HVD_FLOAT16;
    case XLA_FFI_DataType_F32:
      return HVD_FLOAT32;
    case XLA_FFI_DataType_F64:
      return HVD_FLOAT64;
    case XLA_FFI_DataType_PRED:
      return HVD_BOOL;
    case XLA_FFI_DataType_BF16:
      return HVD_BFLOAT16;
    case XLA_FFI_DataType_F8E4M3FN:
      return HVD_FLOAT8_E4M3;
    case XLA_FFI_DataType_F8E5M2:
      return HVD_FLOAT8_E5M2;
    case XLA_FFI_DataType_U32:
      return HVD_UINT32;
    case XLA_FFI_DataType_U64:
      return HVD_UINT64;
    default:
      return kUnknownDType;
  }
}

size_t Bytes(const XLA_FFI_Buffer& buffer) {
  size_t bytes = hvd_item_bytes(DTypeOf(buffer.dtype));
  for (int64_t i = 0; i < buffer.rank; ++i) bytes *= static_cast<size_t>(buffer.dims[i]);
  return bytes;
}

int64_t Rows(const XLA_FFI_Buffer& buffer) { return buffer.rank ? buffer.dims[0] : 0; }

std::string OtherSize(int32_t size) {
  return "was traced for a number of ranks other than the " + std::to_string(size) +
         " that there are now, so its result has the wrong shape: trace the function again (JAX: jax.clear_caches())";
}

// Return the result buffer of an alltoall, or null, which fails the alltoall, if the other ranks send another number of
// rows than the program was compiled for.
void* ReceivedRows(void* context, const int64_t* shape, int32_t) {
  const auto* received = static_cast<const std::pair<void*, int64_t>*>(context);
  return shape[0] == received->second ? received->first : nullptr;
}

}  // namespace

// Describe the shape. Negotiation lets allgather and alltoall differ in the first dimension, but shapes in a compiled
// program are fixed. So the rows move to the second dimension, where a difference is an error on every rank.
std::string Operations::Shape(const Frame& frame, int64_t i, const bindings::Membership& member) {
  const XLA_FFI_Buffer& in = frame.arg(i);
  const XLA_FFI_Buffer& out = frame.ret(i);
  const int64_t size = member.size, rows = Rows(in);
  std::vector<int64_t>& shape = shapes[i];
  shape.assign(in.dims, in.dims + in.rank);
  switch (frame.Integer("kind")) {
    case HVD_ALLGATHER:
      if (Rows(out) != rows * size) return OtherSize(member.size);
      shape.insert(shape.begin(), 1);
      return {};
    case HVD_ALLTOALL:
      if (!frame.Text("splits").empty()) return ReadSplits(frame, member);
      if (rows % size) return OtherSize(member.size);
      shape[0] = rows / size;
      shape.insert(shape.begin(), size);
      splits.assign(static_cast<size_t>(size), 1);
      return {};
    case HVD_REDUCESCATTER:
      return Rows(out) == rows / size + (member.index < rows % size) ? "" : OtherSize(member.size);
    default:
      return {};
  }
}

// Parse the splits, which the program holds as numbers with a space after each.
std::string Operations::ReadSplits(const Frame& frame, const bindings::Membership& member) {
  const std::string_view text = frame.Text("splits");
  splits.clear();
  for (const char *at = text.data(), *end = at + text.size(); at < end; ++at) {
    int64_t rows = 0;
    at = std::from_chars(at, end, rows).ptr;
    splits.push_back(rows);
  }
  if (static_cast<int32_t>(splits.size()) != member.size) return OtherSize(member.size);
  received = {frame.ret(0).data, Rows(frame.ret(0))};
  return {};
}

bool Operations::RowsMustAgree() const {
  const bool has_equal_shares = ops[0].kind == HVD_ALLTOALL && !ops[0].allocate;
  return ops[0].kind == HVD_ALLGATHER || has_equal_shares;
}

std::string Operations::Describe(const Frame& frame, const bindings::Membership& member, int copy) {
  // Ignore the token at the end of TensorFlow's calls, which only orders them.
  const int64_t count = frame.args() - frame.Integer("token");
  name = std::string(frame.Text("name")) + (copy ? "#" + std::to_string(copy + 1) : "");
  if (frame.rets() != frame.args()) return "has " + std::to_string(frame.rets()) + " results";
  const std::string_view contents = frame.Text("contents");
  if (count > 1 || !contents.empty()) group = name;
  names.resize(static_cast<size_t>(count) + 1);  // one name more, for the contents of a group
  const std::string_view checksum = contents.substr(contents.size() - std::min(contents.size(), kChecksumDigits));
  const std::string member_name = checksum.empty() ? name : name + "." + std::string(checksum);
  shapes.resize(static_cast<size_t>(count));
  ops.resize(static_cast<size_t>(count));
  const bool only_root = frame.Integer("only_root") != 0;
  for (int64_t i = 0; i < count; ++i) {
    names[i] = group.empty() ? name : member_name + "_" + std::to_string(i + 1) + "of" + std::to_string(count);
    const XLA_FFI_Buffer& in = frame.arg(i);
    hvd_op& op = ops[i];
    op = {};
    op.size = sizeof op;
    op.kind = static_cast<int32_t>(frame.Integer("kind"));
    op.dtype = DTypeOf(in.dtype);
    if (op.dtype == kUnknownDType) return "has a dtype that is not supported";
    if (std::string wrong = Shape(frame, i, member); !wrong.empty()) return wrong;
    op.reduce_op = static_cast<int32_t>(frame.Integer("op"));
    op.root = static_cast<int32_t>(frame.Integer("root"));
    op.device = -1;
    op.name = names[i].c_str();
    op.shape = shapes[i].data();
    op.ndim = static_cast<int32_t>(shapes[i].size());
    op.splits = splits.data();
    op.nsplits = static_cast<int32_t>(splits.size());
    op.input = in.data;
    op.output = frame.ret(i).data;
    if (received.first) {
      op.output = nullptr;
      op.allocate = ReceivedRows;
      op.allocate_context = &received;
    }
    op.prescale = frame.Real("prescale");
    op.postscale = frame.Real("postscale");
    if (only_root && op.root != member.rank) zeros.emplace_back(op.output, Bytes(in));
    if (only_root) op.root = -1;
  }
  if (!contents.empty()) DescribeContents(contents);
  return {};
}

// Add an empty tensor, so that the engine compares the contents; see Task::DescribeContents in bindings/tensorflow.
void Operations::DescribeContents(std::string_view contents) {
  static constexpr int64_t kNoElements = 0;
  static char nothing;
  group += ": ";
  group += contents;
  names.back() = name;
  hvd_op op = ops.front();
  op.name = names.back().c_str();
  op.shape = &kNoElements;
  op.ndim = 1;
  op.input = op.output = &nothing;
  ops.push_back(op);
}

}  // namespace hvd::xla
