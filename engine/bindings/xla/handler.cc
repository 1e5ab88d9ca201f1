// SPDX-License-Identifier: Apache-2.0
// XLA handlers: a custom call in a compiled program becomes one submission to the engine. On the CPU, XLA gets a
// future; for GPUs see device_handler. A few exported C functions are the whole interface; horovod.jax and
// horovod.tensorflow pass them to XLA or call them.
#include <hvd/engine.h>

#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "bindings/xla/call.h"
#include "bindings/xla/completions.h"
#include "bindings/xla/device_handler.h"

namespace hvd::xla {
namespace {

// Return how many milliseconds a call waits on XLA's thread. It drives the engine meanwhile, which saves two thread
// hand-overs and the time for gathering. The wait is short, because another collective may need this thread to start.
// That is unlikely if the program has a single collective; with many, it is better to start and fuse them all.
int PatienceMs(const Instance* instance) {
  const int collectives = instance ? instance->program->instances.load() : 0;
  if (collectives == 1) return 20;
  return 1 < collectives && collectives <= 4 ? 2 : 0;
}

class HostCall : public Call {
 public:
  using Call::Call;

  // Return a future through which XLA learns of the end.
  XLA_FFI_Future* Promise() {
    XLA_FFI_Future_Create_Args args{};
    args.struct_size = sizeof args;
    if (api()->XLA_FFI_Future_Create(&args)) return nullptr;
    future_ = args.future;
    if (!LeaveToCallback()) {
      GiveBack();
      Fulfil();
    }
    return args.future;
  }

  XLA_FFI_Error* Finish(const End& end) {
    if (end.code == HVD_OK) {
      for (const auto& [data, bytes] : operations.zeros) std::memset(data, 0, bytes);
    }
    return ErrorOf(end);
  }

 private:
  void Complete() override {
    Completions::All().Post([call = shared_from_this(), this] { Fulfil(); });
  }

  void Fulfil() {
    if (XLA_FFI_Error* error = Finish(end())) {
      XLA_FFI_Future_SetError_Args args{sizeof args, nullptr, future_, error};
      api()->XLA_FFI_Future_SetError(&args);
    } else {
      XLA_FFI_Future_SetAvailable_Args args{sizeof args, nullptr, future_};
      api()->XLA_FFI_Future_SetAvailable(&args);
    }
  }

  XLA_FFI_Future* future_ = nullptr;
};

XLA_FFI_Error* Execute(Frame& frame) {
  const bindings::Contexts::Reading contexts(AllContexts());
  const bindings::Membership* member = contexts.Find(frame.Integer("context"));
  if (!member) return NotAlive(frame);
  const Instance* instance = InstanceOf(frame);
  auto call = std::make_shared<HostCall>(frame, member->world);
  if (XLA_FFI_Error* wrong = call->Describe(frame, *member, instance)) return wrong;
  const int patience = PatienceMs(instance);
  if (XLA_FFI_Error* refused = call->Submit(member->process_set, patience > 0)) return refused;
  End end;
  if (patience > 0 && call->Wait(patience, &end)) return call->Finish(end);
  XLA_FFI_Future* future = call->Promise();
  if (!future) return frame.Error(XLA_FFI_Error_Code_INTERNAL, "Horovod: XLA returned no future");
  frame.set_future(future);
  return nullptr;
}

// Run `body` and convert exceptions to errors, because XLA cannot handle exceptions.
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

HVD_XLA_EXPORT XLA_FFI_Error* hvd_xla_execute_cuda(XLA_FFI_CallFrame* call_frame) {
  return hvd::xla::Guard(call_frame, hvd::xla::ExecuteOnDevice);
}

// Register the handlers with an XLA that has no Python function for that (TensorFlow's). Return 1, or 0 if it refuses
// them.
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

HVD_XLA_EXPORT int32_t hvd_xla_lost_rank() { return hvd::xla::TakeLostRank(); }
