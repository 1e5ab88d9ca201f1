// SPDX-License-Identifier: Apache-2.0
#include "bindings/xla/device_handler.h"

#include <hvd/engine.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "bindings/xla/call.h"
#include "bindings/xla/cuda_driver.h"

namespace hvd::xla {
namespace {

// How long the thread that runs the program may drive the engine while it holds the contexts' lock.
constexpr int kPatienceMs = 20;

struct Place {
  int ordinal = 0;
  void* stream = nullptr;
};

// Find the GPU and the stream of the program. XLA makes the GPU's context current before it runs a program; the engine
// uses the driver's device numbers too.
XLA_FFI_Error* PlaceOf(const Frame& frame, Place* place) {
  if (XLA_FFI_Error* error = frame.Stream(&place->stream)) return error;
  const CudaDriver* const driver = CudaDriver::Get();
  if (!driver) return frame.Error(XLA_FFI_Error_Code_INTERNAL, "Horovod: libcuda.so.1 cannot be opened");
  const int result = driver->current_device(&place->ordinal);
  if (result == 0) return nullptr;
  return frame.Error(XLA_FFI_Error_Code_INTERNAL,
                     "Horovod: cannot find out on which GPU the program runs: " + driver->NameOf(result));
}

class DeviceCall : public Call {
 public:
  DeviceCall(const Frame& frame, hvd_world* world, const Place& place) : Call(frame, world), place_(place) {}

  void PutOnStream() {
    for (hvd_op& op : operations.ops) {
      op.device = place_.ordinal;
      op.stream = reinterpret_cast<uint64_t>(place_.stream);
    }
  }

  // Leave the call to the engine's callback. Return false if the call has ended already; the caller must then use
  // end().
  bool Leave() { return LeaveToCallback(); }
  using Call::end;

  // Order work that XLA puts on the stream from now on after the operation. The world must exist.
  End Order(End end) const {
    if (end.code != HVD_OK) return end;
    hvd_status status{};
    status.code = Engine()->let_wait(world(), place_.ordinal, reinterpret_cast<uint64_t>(place_.stream), &status);
    return End(status);
  }

  // Wait for the callback's result after Leave. The world may have been closed by then.
  End Await() {
    std::unique_lock<std::mutex> lock(mutex_);
    completed_.wait(lock, [this] { return ordered_ != nullptr; });
    return *ordered_;
  }

  // Report the result. Call on the thread that runs the program, because it has the GPU's context.
  XLA_FFI_Error* Finish(const End& end) const {
    if (end.code != HVD_OK) return ErrorOf(end);
    for (const auto& [data, bytes] : operations.zeros) {
      if (bytes == 0) continue;
      const CudaDriver* const driver = CudaDriver::Get();
      const int result = driver->set_bytes(reinterpret_cast<uint64_t>(data), 0, bytes, place_.stream);
      if (result != 0) {
        return MakeError(api(), XLA_FFI_Error_Code_INTERNAL, "Horovod: clearing a result: " + driver->NameOf(result));
      }
    }
    return nullptr;
  }

 private:
  void Complete() override {
    auto ordered = std::make_unique<End>(Order(end()));
    std::lock_guard<std::mutex> lock(mutex_);
    ordered_ = std::move(ordered);
    completed_.notify_one();
  }

  const Place place_;
  std::mutex mutex_;
  std::condition_variable completed_;
  std::unique_ptr<End> ordered_;
};

}  // namespace

XLA_FFI_Error* ExecuteOnDevice(Frame& frame) {
  Place place;
  if (XLA_FFI_Error* error = PlaceOf(frame, &place)) return error;
  std::shared_ptr<DeviceCall> left;
  {
    const bindings::Contexts::Reading contexts(AllContexts());
    const bindings::Membership* member = contexts.Find(frame.Integer("context"));
    if (!member) return NotAlive(frame);
    auto call = std::make_shared<DeviceCall>(frame, member->world, place);
    // Copies of a call in one program need no separate names, because all ranks run them one after another, in one
    // order.
    if (XLA_FFI_Error* wrong = call->Describe(frame, *member, nullptr)) return wrong;
    call->PutOnStream();
    if (XLA_FFI_Error* refused = call->Submit(member->process_set, true)) return refused;
    End end;
    if (call->Wait(kPatienceMs, &end)) return call->Finish(call->Order(end));
    if (!call->Leave()) return call->Finish(call->Order(call->end()));
    left = std::move(call);
  }
  // Wait without the lock, because the thread that closes the world needs it; closing the world ends this wait.
  return left->Finish(left->Await());
}

}  // namespace hvd::xla
