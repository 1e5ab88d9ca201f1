// SPDX-License-Identifier: Apache-2.0
#include "bindings/tensorflow/task.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace hvd::tensorflow {
namespace {

constexpr int32_t kNone = -1;

// True while the engine's completion callback runs on this thread. TensorFlow may start more operations from it; these
// must not wait, because this thread may be the one that drives the engine.
thread_local bool inside_callback = false;

// Number of collectives started in this process, and number in progress.
std::atomic<uint64_t> starts{0};
std::atomic<int> under_way{0};

const hvd_api* Engine() {
  static const hvd_api* const api = hvd_get_api(HVD_ABI_VERSION);
  return api;
}

// Return the hvd_dtype for a TF_DataType.
int32_t EngineType(int type) {
  static constexpr struct {
    int theirs;
    hvd_dtype ours;
  } kTypes[] = {{kUint8, HVD_UINT8},
                {kInt8, HVD_INT8},
                {kUint16, HVD_UINT16},
                {kInt16, HVD_INT16},
                {kInt32, HVD_INT32},
                {kInt64, HVD_INT64},
                {kHalf, HVD_FLOAT16},
                {kFloat, HVD_FLOAT32},
                {kDouble, HVD_FLOAT64},
                {kBool, HVD_BOOL},
                {kBfloat16, HVD_BFLOAT16},
                {kFloat8E4M3FN, HVD_FLOAT8_E4M3},
                {kFloat8E5M2, HVD_FLOAT8_E5M2},
                {kUint32, HVD_UINT32},
                {kUint64, HVD_UINT64}};
  for (const auto& known : kTypes) {
    if (known.theirs == type) return known.ours;
  }
  return kNone;
}

size_t Bytes(int32_t type, const int64_t* shape, int32_t ndim) {
  size_t bytes = hvd_item_bytes(type);
  for (int32_t i = 0; i < ndim; ++i) bytes *= static_cast<size_t>(shape[i]);
  return bytes;
}

// Length of the checksum at the end of a group's contents; see horovod/common/group_contents.py
constexpr size_t kChecksumDigits = 8;

char nothing;  // address for empty tensors, because NULL would ask the engine to allocate memory

void* DataOf(TF_Tensor* tensor) {
  void* data = Tf().TF_TensorData(tensor);
  return data ? data : &nothing;
}

}  // namespace

Task::Task(const Kernel& kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done)
    : kernel_(kernel), context_(context), done_(done), name_(kernel.NameIn(Tf().TF_GetIterId(context))) {}

Task::~Task() {
  for (TF_Tensor* tensor : tensors_) {
    if (tensor) Tf().TF_DeleteTensor(tensor);
  }
}

void Task::Start(const Kernel& kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  Task* const task = new Task(kernel, context, done);
  bool last = false;
  {
    const bindings::Contexts::Reading contexts(AllContexts());
    if (const bindings::Membership* member = contexts.Find(kernel.context)) {
      if (task->Describe(*member)) task->Submit(*member);
    } else if (!contexts.Find(0)) {
      task->Fail(kFailedPrecondition, "Horovod has not been initialized; call hvd.init() first");
    } else {
      task->Fail(kInvalidArgument,
                 "its process set is not registered, or this rank is not a member of it: pass the set to hvd.init() or "
                 "hvd.add_process_set(), and run its collectives on its members only");
    }
    last = task->Leave();
    if (last) task->Collect();
  }
  // Not earlier, because TensorFlow may start the next collective, or a shutdown, on this thread.
  if (last) task->End();
}

bool Task::Describe(const bindings::Membership& member) {
  world_ = member.world;
  members_ = member.size;
  const bool has_splits = kernel_.kind == HVD_ALLTOALL;
  const size_t count = static_cast<size_t>(Tf().TF_NumInputs(context_)) - has_splits;
  const size_t ops = kernel_.kind == HVD_JOIN ? 1 : count;
  ops_.resize(ops);
  names_.resize(ops + 1);  // one name more, for the contents of a group
  const std::string_view contents = kernel_.contents;
  const std::string_view checksum = contents.substr(contents.size() - std::min(contents.size(), kChecksumDigits));
  const std::string member_name = checksum.empty() ? name_ : name_ + "." + std::string(checksum);
  shapes_.resize(ops);
  places_.resize(ops);
  types_.resize(ops);
  tensors_.resize(ops + 1);  // one tensor more, for the received splits or the result of a join
  for (size_t i = 0; i < ops; ++i) {
    hvd_op& op = ops_[i];
    op = {};
    op.size = sizeof op;
    op.kind = kernel_.kind;
    op.reduce_op = static_cast<int32_t>(kernel_.reduce_op);
    op.root = static_cast<int32_t>(kernel_.root);
    op.device = kNone;
    op.prescale = kernel_.prescale;
    op.postscale = kernel_.postscale;
    names_[i] = kernel_.grouped ? member_name + "_" + std::to_string(i + 1) + "of" + std::to_string(ops) : name_;
    op.name = names_[i].c_str();
    if (kernel_.kind != HVD_JOIN && !DescribeTensor(i, member)) return false;
  }
  if (kernel_.grouped) DescribeContents();
  return !has_splits || DescribeSplits(member);
}

// Add an empty tensor to the group, so that the engine detects different contents. Ranks that put different tensors
// into a group also give these different names, and would wait for each other. The empty tensor's name does not depend
// on the contents, so the engine compares the group names, which contain them. It comes last, so that the engine knows
// all members of both groups when it compares it, and fails them together.
void Task::DescribeContents() {
  group_ = name_;
  if (kernel_.contents.empty()) return;
  static constexpr int64_t kNoElements = 0;
  group_ += ": " + kernel_.contents;
  names_.back() = name_;
  hvd_op op = ops_.front();
  op.name = names_.back().c_str();
  op.shape = &kNoElements;
  op.ndim = 1;
  op.input = op.output = &nothing;
  op.allocate = nullptr;
  ops_.push_back(op);
}

bool Task::DescribeTensor(size_t i, const bindings::Membership& member) {
  const Status status;
  TF_Tensor* input = nullptr;
  Tf().TF_GetInput(context_, static_cast<int>(i), &input, status.get());
  if (!status.ok()) return Fail(kUnknown, status.text());
  hvd_op& op = ops_[i];
  const int type = Tf().TF_TensorType(input);
  op.dtype = EngineType(type);
  op.ndim = Tf().TF_NumDims(input);
  shapes_[i].resize(static_cast<size_t>(op.ndim));
  for (int32_t d = 0; d < op.ndim; ++d) shapes_[i][d] = Tf().TF_Dim(input, d);
  op.shape = shapes_[i].data();
  op.input = DataOf(input);
  // Drop this reference: the context keeps the input alive, and another reference would stop TensorFlow from reusing
  // its memory.
  Tf().TF_DeleteTensor(input);
  if (op.dtype == kNone) return Fail(kUnknown, "its dtype is not supported");
  const bool by_rows =
      kernel_.kind == HVD_ALLGATHER || kernel_.kind == HVD_ALLTOALL || kernel_.kind == HVD_REDUCESCATTER;
  if (by_rows && op.ndim == 0) return Fail(kInvalidArgument, "it needs a tensor with at least one dimension");
  types_[i] = type;
  return CheckReduction(op) && MakeResult(i, type, member);
}

bool Task::CheckReduction(const hvd_op& op) {
  if (op.kind != HVD_ALLREDUCE && op.kind != HVD_REDUCESCATTER) return true;
  if (op.dtype == HVD_BOOL && (op.reduce_op == HVD_AVERAGE || op.prescale != 1.0 || op.postscale != 1.0)) {
    return Fail(kInvalidArgument,
                "averaging or scaling bool is not supported; use op=hvd.Max (any) or hvd.Min (all), or convert it");
  }
  if (op.reduce_op == HVD_ADASUM && !hvd_is_floating(op.dtype)) {
    return Fail(kInvalidArgument, "Adasum needs floating-point values: convert the tensor first");
  }
  return true;
}

bool Task::MakeResult(size_t i, int type, const bindings::Membership& member) {
  hvd_op& op = ops_[i];
  const int index = static_cast<int>(i);
  const Status status;
  if (kernel_.kind == HVD_ALLGATHER || kernel_.kind == HVD_ALLTOALL) {
    places_[i] = {this, index};
    op.allocate = Allocate;
    op.allocate_context = &places_[i];
    return true;
  }
  if (kernel_.kind == HVD_REDUCESCATTER) {
    std::vector<int64_t> shape = shapes_[i];
    shape[0] = shape[0] / member.size + (member.index < shape[0] % member.size);
    const size_t bytes = Bytes(op.dtype, shape.data(), op.ndim);
    tensors_[i] = Tf().TF_AllocateOutput(context_, index, type, shape.data(), op.ndim, bytes, status.get());
  } else {
    int forwarded = kNone;
    tensors_[i] =
        Tf().TF_ForwardInputOrAllocateOutput(context_, &index, 1, index, op.shape, op.ndim, &forwarded, status.get());
  }
  if (!status.ok()) return Fail(kUnknown, status.text());
  op.output = DataOf(tensors_[i]);
  return true;
}

bool Task::DescribeSplits(const bindings::Membership& member) {
  const Status status;
  TF_Tensor* input = nullptr;
  Tf().TF_GetInput(context_, 1, &input, status.get());
  if (!status.ok()) return Fail(kUnknown, status.text());
  const bool is_vector = Tf().TF_NumDims(input) == 1;
  const auto* values = static_cast<const int32_t*>(Tf().TF_TensorData(input));
  if (is_vector) splits_.assign(values, values + Tf().TF_Dim(input, 0));
  Tf().TF_DeleteTensor(input);
  if (!is_vector) return Fail(kInvalidArgument, "splits must have one dimension, with one number for each rank");
  if (splits_.empty()) {
    const int64_t rows = shapes_[0][0];
    if (rows % member.size) {
      return Fail(kInvalidArgument, "without splits it needs rows that divide evenly, but " + std::to_string(rows) +
                                        " rows do not among " + std::to_string(member.size) + " ranks");
    }
    splits_.assign(static_cast<size_t>(member.size), rows / member.size);
  }
  ops_[0].splits = splits_.data();
  ops_[0].nsplits = static_cast<int32_t>(splits_.size());
  return true;
}

void Task::Submit(const bindings::Membership& member) {
  const int patience = inside_callback || kernel_.kind == HVD_JOIN ? 0 : kernel_.PatienceMs();
  hvd_status status{};
  alone_ = under_way.fetch_add(1) == 0;
  start_ = starts.fetch_add(1) + 1;
  parties_.fetch_add(1);
  handle_ =
      Engine()->submit(world_, member.process_set, ops_.data(), static_cast<int32_t>(ops_.size()),
                       kernel_.grouped ? group_.c_str() : nullptr, patience ? HVD_WILL_WAIT : 0, OnDone, this, &status);
  if (!handle_) {
    under_way.fetch_sub(1);
    parties_.fetch_sub(1);
    Fail(status);
  } else if (patience && Engine()->wait(world_, handle_, patience, &status) == HVD_IN_PROGRESS) {
    alone_ = false;  // the next call then does not wait; if the collective ended otherwise, OnDone records that
  }
}

void* Task::Allocate(void* pointer, const int64_t* shape, int32_t ndim) {
  const Place& place = *static_cast<Place*>(pointer);
  Task& task = *place.task;
  const Status status;
  const size_t bytes = Bytes(task.ops_[place.index].dtype, shape, ndim);
  TF_Tensor*& tensor = task.tensors_[place.index];
  tensor =
      Tf().TF_AllocateOutput(task.context_, place.index, task.types_[place.index], shape, ndim, bytes, status.get());
  return status.ok() ? DataOf(tensor) : nullptr;
}

void Task::OnDone(void* pointer, const hvd_status* status) {
  Task* const task = static_cast<Task*>(pointer);
  if (status->code != HVD_OK) task->Fail(*status);
  if (!task->Leave()) return;
  const bool nested = inside_callback;
  inside_callback = true;
  task->Collect();
  task->End();
  inside_callback = nested;
}

// Collect the results and release the handle. The world exists here: Start holds the contexts' lock, and the callback
// runs before the world is closed.
void Task::Collect() {
  if (!handle_) return;
  const Status status;
  if (code_ == kOk && kernel_.kind == HVD_JOIN) {
    tensors_[1] = Tf().TF_AllocateOutput(context_, 0, kInt32, nullptr, 0, sizeof(int32_t), status.get());
    if (status.ok())
      *static_cast<int32_t*>(DataOf(tensors_[1])) = static_cast<int32_t>(Engine()->value(world_, handle_));
  } else if (code_ == kOk && kernel_.kind == HVD_ALLTOALL) {
    const int64_t count = members_;
    tensors_[1] = Tf().TF_AllocateOutput(context_, 1, kInt32, &count, 1, count * sizeof(int32_t), status.get());
    splits_.resize(static_cast<size_t>(count));
    Engine()->received_splits(world_, handle_, splits_.data(), members_);
    for (int32_t i = 0; status.ok() && i < members_; ++i) {
      static_cast<int32_t*>(DataOf(tensors_[1]))[i] = static_cast<int32_t>(splits_[i]);
    }
  }
  if (!status.ok()) Fail(kUnknown, status.text());
  Engine()->release(world_, handle_);
  under_way.fetch_sub(1);
  kernel_.Remember(alone_ && starts.load() == start_);
}

void Task::End() {
  if (code_ != kOk) {
    const std::string text = std::string(kernel_.type) + ": " + error_;
    const Status status(code_, text.c_str());
    Tf().TF_OpKernelContext_Failure(context_, status.get());
  }
  Done done = std::move(done_);
  delete this;
  done.Run();
}

bool Task::Fail(int code, const std::string& text) {
  code_ = code;
  error_ = "'" + name_ + "': " + text;
  return false;
}

void Task::Fail(const hvd_status& status) {
  const bool mismatch = status.code == HVD_MISMATCH;
  code_ = mismatch ? kFailedPrecondition : status.code == HVD_INVALID ? kInvalidArgument : kUnknown;
  error_ = status.text;
}

}  // namespace hvd::tensorflow
