// SPDX-License-Identifier: Apache-2.0
#include "bindings/xla/call.h"

#include <utility>

namespace hvd::xla {
namespace {

std::atomic<int32_t> last_lost_rank{-1};

bool IsTensorflow(const Frame& frame) { return !frame.Text("type").empty(); }

XLA_FFI_Error_Code CodeOf(int32_t code, bool tensorflow) {
  switch (code) {
    case HVD_INVALID:
      return XLA_FFI_Error_Code_INVALID_ARGUMENT;
    case HVD_MISMATCH:
      return XLA_FFI_Error_Code_FAILED_PRECONDITION;
    case HVD_NOT_IMPLEMENTED:
      return tensorflow ? XLA_FFI_Error_Code_UNKNOWN : XLA_FFI_Error_Code_UNIMPLEMENTED;
    default:
      return tensorflow ? XLA_FFI_Error_Code_UNKNOWN : XLA_FFI_Error_Code_ABORTED;
  }
}

}  // namespace

bindings::Contexts& AllContexts() {
  static auto* contexts = new bindings::Contexts;
  return *contexts;
}

const hvd_api* Engine() {
  static const hvd_api* api = hvd_get_api(HVD_ABI_VERSION);
  return api;
}

int32_t TakeLostRank() { return last_lost_rank.exchange(-1); }

std::string Blame(const Frame& frame) {
  const std::string_view type = frame.Text("type");
  return type.empty() ? "Horovod: " : std::string(type) + ": ";
}

XLA_FFI_Error* NotAlive(const Frame& frame) {
  return frame.Error(IsTensorflow(frame) ? XLA_FFI_Error_Code_FAILED_PRECONDITION : XLA_FFI_Error_Code_UNAVAILABLE,
                     Blame(frame) + "'" + std::string(frame.Text("name")) +
                         "' runs while Horovod is not initialized, or its process set is not "
                         "registered any more: call hvd.init() first");
}

End::End(const hvd_status& status) : code(status.code), lost_rank(status.lost_rank) {
  if (code != HVD_OK) text = status.text;
}

Call::Call(const Frame& frame, hvd_world* world)
    : api_(frame.api()), world_(world), blame_(Blame(frame)), tensorflow_(IsTensorflow(frame)) {}

XLA_FFI_Error* Call::Describe(const Frame& frame, const bindings::Membership& member, const Instance* instance) {
  const std::string wrong = operations.Describe(frame, member, instance ? instance->number : 0);
  if (wrong.empty()) return nullptr;
  return frame.Error(XLA_FFI_Error_Code_INVALID_ARGUMENT,
                     blame_ + "'" + std::string(frame.Text("name")) + "' " + wrong);
}

XLA_FFI_Error* Call::Submit(int32_t process_set, bool will_wait) {
  auto* callback = new std::shared_ptr<Call>(shared_from_this());
  const auto count = static_cast<int32_t>(operations.ops.size());
  const char* group = operations.group.empty() ? nullptr : operations.group.c_str();
  hvd_status status{};
  handle_ = Engine()->submit(world_, process_set, operations.ops.data(), count, group, will_wait ? HVD_WILL_WAIT : 0,
                             OnDone, callback, &status);
  if (handle_) return nullptr;
  delete callback;
  return ErrorOf(End(status));
}

bool Call::Wait(int milliseconds, End* end) {
  hvd_status status{};
  status.code = Engine()->wait(world_, handle_, milliseconds, &status);
  if (status.code == HVD_IN_PROGRESS) return false;
  *end = End(status);
  return true;
}

XLA_FFI_Error* Call::ErrorOf(End end) const {
  if (end.code == HVD_OK) return nullptr;
  if (end.lost_rank >= 0) last_lost_rank = end.lost_rank;
  if (end.code == HVD_MISMATCH && operations.RowsMustAgree()) {
    end.text += " Inside jit, allgather and alltoall need the same number of rows on all ranks; outside it may differ.";
  }
  return MakeError(api_, CodeOf(end.code, tensorflow_), blame_ + end.text);
}

void Call::GiveBack() {
  if (const int64_t handle = handle_.exchange(0)) Engine()->release(world_, handle);
}

void Call::OnDone(void* context, const hvd_status* status) {
  std::unique_ptr<std::shared_ptr<Call>> callback(static_cast<std::shared_ptr<Call>*>(context));
  const std::shared_ptr<Call> call = *callback;
  call->end_ = End(*status);
  if (call->stage_.exchange(kDone) != kLeft) return;
  call->GiveBack();
  call->Complete();
}

}  // namespace hvd::xla
