// SPDX-License-Identifier: Apache-2.0
// The XLA handlers: a custom call in a compiled program becomes one submission to the engine, and XLA gets a future.
// Everything leaves through a few C functions, which horovod.jax and horovod.tensorflow hand to XLA and call
// themselves.
#include <hvd/engine.h>

#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "bindings/shared/contexts.h"
#include "bindings/xla/completions.h"
#include "bindings/xla/frame.h"
#include "bindings/xla/instances.h"
#include "bindings/xla/operations.h"

namespace hvd::xla {
namespace {

// How long a call waits on the spot and drives the engine meanwhile, which saves two thread hand-overs and the time for
// gathering. Never for long: the thread that waits may be the one that another collective needs to be started. With a
// single collective in the program that is unlikely; with many, starting them all and letting them fuse is better.
int PatienceMs(const Instance* instance) {
  const int collectives = instance ? instance->program->instances.load() : 0;
  if (collectives == 1) return 20;
  return 1 < collectives && collectives <= 4 ? 2 : 0;
}

bindings::Contexts& AllContexts() {
  static auto* contexts = new bindings::Contexts;
  return *contexts;
}

std::atomic<int32_t> last_lost_rank{-1};

const hvd_api* Engine() {
  static const hvd_api* api = hvd_get_api(HVD_ABI_VERSION);
  return api;
}

// TensorFlow's programs name the type of the operation, which is what its users look for in errors.
std::string Blame(const Frame& frame) {
  const std::string_view type = frame.Text("type");
  return type.empty() ? "Horovod: " : std::string(type) + ": ";
}
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

// One call on its way. The handler, the engine's callback and the thread that tells XLA share it. The last one of the
// first two gives the handle back, while the world is certainly there: the handler holds the contexts' lock, the
// callback runs before the world is closed. Once XLA has been told, the program may have gone on to the next world.
class Call {
 public:
  Call(const Frame& frame, hvd_world* world)
      : api_(frame.api()), world_(world), blame_(Blame(frame)), tensorflow_(IsTensorflow(frame)) {}
  ~Call() { GiveBack(); }

  Operations operations;

  int64_t Submit(const std::shared_ptr<Call>& self, int32_t process_set, bool will_wait, hvd_status* status) {
    auto* callback = new std::shared_ptr<Call>(self);
    const auto count = static_cast<int32_t>(operations.ops.size());
    const char* group = count > 1 ? operations.name.c_str() : nullptr;
    handle_ = Engine()->submit(world_, process_set, operations.ops.data(), count, group, will_wait ? HVD_WILL_WAIT : 0,
                               OnDone, callback, status);
    if (!handle_) delete callback;
    return handle_;
  }

  int32_t Wait(int milliseconds, hvd_status* status) { return Engine()->wait(world_, handle_, milliseconds, status); }

  // From now on XLA hears of the end by a future.
  XLA_FFI_Future* Promise() {
    XLA_FFI_Future_Create_Args args{};
    args.struct_size = sizeof args;
    if (api_->XLA_FFI_Future_Create(&args)) return nullptr;
    future_ = args.future;
    if (stage_.exchange(kPromised) == kDone) {
      GiveBack();
      Fulfil();
    }
    return args.future;
  }

  // After success, or the error for XLA.
  XLA_FFI_Error* Finish(int32_t code, int32_t lost_rank, std::string text) {
    if (code == HVD_OK) {
      for (const auto& [data, bytes] : operations.zeros) std::memset(data, 0, bytes);
      return nullptr;
    }
    if (lost_rank >= 0) last_lost_rank = lost_rank;
    if (code == HVD_MISMATCH && operations.RowsMustAgree()) {
      text += " Inside jit, allgather and alltoall need the same number of rows on all ranks; outside it may differ.";
    }
    return MakeError(api_, CodeOf(code, tensorflow_), blame_ + text);
  }

 private:
  enum Stage { kRunning, kPromised, kDone };

  static void OnDone(void* context, const hvd_status* status) {
    std::unique_ptr<std::shared_ptr<Call>> callback(static_cast<std::shared_ptr<Call>*>(context));
    std::shared_ptr<Call> call = *callback;
    call->code_ = status->code;
    call->lost_rank_ = status->lost_rank;
    if (status->code != HVD_OK) call->text_ = status->text;
    if (call->stage_.exchange(kDone) != kPromised) return;
    call->GiveBack();
    Completions::All().Post([call] { call->Fulfil(); });
  }

  void GiveBack() {
    if (const int64_t handle = handle_.exchange(0)) Engine()->release(world_, handle);
  }

  void Fulfil() {
    if (XLA_FFI_Error* error = Finish(code_, lost_rank_, text_)) {
      XLA_FFI_Future_SetError_Args args{sizeof args, nullptr, future_, error};
      api_->XLA_FFI_Future_SetError(&args);
    } else {
      XLA_FFI_Future_SetAvailable_Args args{sizeof args, nullptr, future_};
      api_->XLA_FFI_Future_SetAvailable(&args);
    }
  }

  const XLA_FFI_Api* api_;
  hvd_world* world_;
  const std::string blame_;
  const bool tensorflow_;
  std::atomic<int64_t> handle_{0};
  std::atomic<int> stage_{kRunning};
  XLA_FFI_Future* future_ = nullptr;
  int32_t code_ = HVD_OK, lost_rank_ = -1;
  std::string text_;
};

XLA_FFI_Error* Execute(Frame& frame) {
  const bindings::Contexts::Reading contexts(AllContexts());
  const bindings::Membership* member = contexts.Find(frame.Integer("context"));
  const std::string name(frame.Text("name"));
  if (!member) {
    return frame.Error(IsTensorflow(frame) ? XLA_FFI_Error_Code_FAILED_PRECONDITION : XLA_FFI_Error_Code_UNAVAILABLE,
                       Blame(frame) + "'" + name +
                           "' runs while Horovod is not initialized, or its process set is not "
                           "registered any more: call hvd.init() first");
  }
  const Instance* instance = InstanceOf(frame);
  auto call = std::make_shared<Call>(frame, member->world);
  const std::string wrong = call->operations.Describe(frame, *member, instance ? instance->number : 0);
  if (!wrong.empty()) return frame.Error(XLA_FFI_Error_Code_INVALID_ARGUMENT, Blame(frame) + "'" + name + "' " + wrong);
  const int patience = PatienceMs(instance);
  hvd_status status{};
  if (!call->Submit(call, member->process_set, patience > 0, &status)) {
    return call->Finish(status.code, status.lost_rank, status.text);
  }
  if (patience > 0) {
    const int32_t code = call->Wait(patience, &status);
    if (code != HVD_IN_PROGRESS) return call->Finish(code, status.lost_rank, status.text);
  }
  XLA_FFI_Future* future = call->Promise();
  if (!future) return frame.Error(XLA_FFI_Error_Code_INTERNAL, "Horovod: XLA returned no future");
  frame.set_future(future);
  return nullptr;
}

// XLA knows nothing of exceptions.
template <typename Body>
XLA_FFI_Error* Guard(XLA_FFI_CallFrame* call_frame, Body body) {
  Frame frame(call_frame);
  if (frame.AnswerMetadata()) return nullptr;
  try {
    return body(frame);
  } catch (const std::exception& error) {
    return frame.Error(XLA_FFI_Error_Code_INTERNAL, std::string("Horovod: the handler failed: ") + error.what());
  }
}

}  // namespace
}  // namespace hvd::xla

#define HVD_XLA_EXPORT extern "C" __attribute__((visibility("default")))

HVD_XLA_EXPORT XLA_FFI_Error* hvd_xla_instantiate(XLA_FFI_CallFrame* call_frame) {
  return hvd::xla::Guard(call_frame, hvd::xla::Instantiate);
}

HVD_XLA_EXPORT XLA_FFI_Error* hvd_xla_execute(XLA_FFI_CallFrame* call_frame) {
  return hvd::xla::Guard(call_frame, hvd::xla::Execute);
}

// Gives the handlers to an XLA that has no Python function for that (TensorFlow's). 1, or 0 if it refuses them.
HVD_XLA_EXPORT int32_t hvd_xla_register(const void* table, const char* target) {
  const auto* api = static_cast<const XLA_FFI_Api*>(table);
  static constexpr char kPlatform[] = "Host";
  XLA_FFI_Handler_Register_Args args{};
  args.struct_size = sizeof args;
  args.name = {target, std::strlen(target)};
  args.platform = {kPlatform, std::strlen(kPlatform)};
  args.bundle.instantiate = hvd_xla_instantiate;
  args.bundle.execute = hvd_xla_execute;
  return hvd::xla::Discard(api, api->XLA_FFI_Handler_Register(&args)) ? 0 : 1;
}

HVD_XLA_EXPORT void hvd_xla_bind(int64_t context, void* world, int32_t process_set, int32_t size, int32_t index,
                                 int32_t rank) {
  hvd::xla::AllContexts().Bind(context, {static_cast<hvd_world*>(world), process_set, size, index, rank});
}

HVD_XLA_EXPORT void hvd_xla_unbind(int64_t context) { hvd::xla::AllContexts().Unbind(context); }

HVD_XLA_EXPORT int32_t hvd_xla_lost_rank() { return hvd::xla::last_lost_rank.exchange(-1); }
