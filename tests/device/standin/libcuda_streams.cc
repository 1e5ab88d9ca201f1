// SPDX-License-Identifier: Apache-2.0
// Events and streams of the stand-in, and values that streams wait for and write.
#include "driver.h"

using namespace standin;

namespace {

enum : unsigned { kWithoutTimes = 2 };

int Keep(void** result, unsigned flags, std::shared_ptr<Shared> memory) {
  if (!memory) return kOutOfMemory;
  auto* const event = new Event(TheContext()->device, std::move(memory), !(flags & kWithoutTimes));
  std::lock_guard<std::mutex> lock(Driver::Get().mutex);
  Driver::Get().events.insert(event);
  *result = event;
  return kSuccess;
}

// With STANDIN_CAPTURING=1, pretend that some thread is always capturing a graph. This forbids calls on threads that
// have not selected the relaxed capture mode.
enum : int { kRelaxed = 2 };
int& CaptureMode() {
  static thread_local int mode = 0;
  return mode;
}

}  // namespace

extern "C" {

// ---- events

int cuEventCreate(void** event, unsigned flags) {
  ENTER("cuEventCreate");
  return Keep(event, flags, Shared::Create(sizeof(uint64_t) * 3, UuidOf(TheContext()->device).bytes));
}

int cuEventDestroy_v2(Event* event) {
  ENTER("cuEventDestroy_v2");
  std::lock_guard<std::mutex> lock(Driver::Get().mutex);
  if (!Driver::Get().events.erase(event)) return kInvalidHandle;
  delete event;
  return kSuccess;
}

int cuEventRecord(const Event* event, void* stream) {
  ENTER("cuEventRecord");
  Stream* const on = StreamOf(stream);
  if (!IsAlive(event) || !IsAlive(on) || event->device() != on->device()) return kInvalidHandle;
  event->Record(on);
  return kSuccess;
}

int cuEventElapsedTime(float* ms, const Event* began, const Event* ended) {
  ENTER("cuEventElapsedTime");
  if (!IsAlive(began) || !IsAlive(ended)) return kInvalidHandle;
  if (!began->IsDone() || !ended->IsDone()) return kNotReady;
  *ms = static_cast<float>(ended->at_ns() - began->at_ns()) / 1e6f;
  return kSuccess;
}

int cuEventQuery(const Event* event) {
  ENTER("cuEventQuery");
  if (Variable("STANDIN_CAPTURING", 0) && CaptureMode() != kRelaxed) return kCapturing;
  if (!IsAlive(event)) return kInvalidHandle;
  return event->IsDone() ? kSuccess : kNotReady;
}

int cuEventSynchronize(const Event* event) {
  ENTER("cuEventSynchronize");
  if (!IsAlive(event)) return kInvalidHandle;
  standin::Await([&] { return event->IsDone() || Faults::Get().broken(); });
  return Enter("cuEventSynchronize");
}

// ---- streams

int cuThreadExchangeStreamCaptureMode(int* mode) {
  ENTER_ANYWHERE("cuThreadExchangeStreamCaptureMode");
  std::swap(*mode, CaptureMode());
  return kSuccess;
}

int cuStreamCreateWithPriority(Stream** stream, unsigned, int) {
  ENTER("cuStreamCreateWithPriority");
  *stream = new Stream(TheContext()->device);
  std::lock_guard<std::mutex> lock(Driver::Get().mutex);
  Driver::Get().streams.insert(*stream);
  return kSuccess;
}

int cuStreamDestroy_v2(Stream* stream) {
  ENTER("cuStreamDestroy_v2");
  std::lock_guard<std::mutex> lock(Driver::Get().mutex);
  if (!Driver::Get().streams.erase(stream)) return kInvalidHandle;
  delete stream;  // tasks that are on it still run
  return kSuccess;
}

int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  ENTER("cuCtxGetStreamPriorityRange");
  *least = 0;
  *greatest = -5;
  return kSuccess;
}

int cuStreamWaitEvent(void* stream, const Event* event, unsigned) {
  ENTER("cuStreamWaitEvent");
  Stream* const on = StreamOf(stream);
  if (!IsAlive(event) || !IsAlive(on)) return kInvalidHandle;
  event->KeepWaiting(on);
  return kSuccess;
}

int cuStreamQuery(void* stream) {
  ENTER("cuStreamQuery");
  return StreamOf(stream)->IsDone() ? kSuccess : kNotReady;
}

int cuStreamSynchronize(void* stream) {
  ENTER("cuStreamSynchronize");
  StreamOf(stream)->Wait();
  return Enter("cuStreamSynchronize");
}

// ---- values in host pages

int cuStreamWaitValue32_v2(void* stream, Address address, uint32_t value, unsigned) {
  ENTER("cuStreamWaitValue32_v2");
  StreamOf(stream)->PutWaiting([address, value] {
    uint32_t now = value;
    const auto look = [&] { now = reinterpret_cast<std::atomic<uint32_t>*>(address)->load(); };
    standin::Await([&] {
      Faults::Get().WhileWhole(look);
      return static_cast<int32_t>(now - value) >= 0 || Faults::Get().broken();
    });
  });
  return kSuccess;
}

int cuStreamWriteValue32_v2(void* stream, Address address, uint32_t value, unsigned) {
  ENTER("cuStreamWriteValue32_v2");
  StreamOf(stream)->Put([address, value] { reinterpret_cast<std::atomic<uint32_t>*>(address)->store(value); });
  return kSuccess;
}

// ---- for tests alone

// Copy on a stream, `delay_us` after the copy's turn has come. Both buffers must stay valid until then.
int standin_copy(void* to, const void* from, size_t bytes, long delay_us, void* stream) {
  ENTER("standin_copy");
  StreamOf(stream)->PutWaiting([=] {
    std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    Faults::Get().WhileWhole([&] { std::memcpy(to, from, bytes); });
  });
  return kSuccess;
}

// Run a task on a stream, as the stand-in for NCCL does.
int standin_put(void* stream, void (*run)(void*), void* argument) {
  ENTER("standin_put");
  Stream* const on = StreamOf(stream);
  if (!IsAlive(on) || on->device() != TheContext()->device) return kInvalidHandle;
  on->PutWaiting([run, argument] { run(argument); });
  return kSuccess;
}

}  // extern "C"
