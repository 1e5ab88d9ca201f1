// SPDX-License-Identifier: Apache-2.0
#include "devices/device.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace hvd {
namespace {

constexpr std::chrono::microseconds kMoment(20);
constexpr unsigned kThreads = 256;  // threads in a block
constexpr size_t kAlwaysByEngine = size_t{128} << 10;
constexpr uint64_t kBytesOfThread = 4 * kUnit;  // minimum number of bytes that a thread processes

constexpr char kPtx[] =
#include "devices/kernels_ptx.inc"
    ;

}  // namespace

Device::Device(const Cuda* cuda, int ordinal) : cuda_(cuda), ordinal_(ordinal) {
  Check(cuda_->device_get(&device_, ordinal), "find");
  char name[256] = {};
  if (cuda_->device_name(name, sizeof name - 1, device_) == kCudaSuccess) name_ = name;
  Check(cuda_->device_uuid(&uuid_, device_), "identify");
  Check(cuda_->context_retain(&context_, device_), "use");
  const Scope scope(*this);
  int processors = 1;
  Check(cuda_->device_attribute(&processors, kCudaMultiprocessors, device_), "ask");
  most_blocks_ = static_cast<unsigned>(processors) * 8;
  int together = 0;  // stays 0 with older drivers, which do not know this attribute
  runs_together_ = cuda_->device_attribute(&together, kCudaMpsEnabled, device_) == kCudaSuccess && together != 0;
  for (CudaStream* stream : {&kernels_, &copies_, &messages_}) *stream = NewStream();
}

// Ignore errors: after a failure, or at the end of the process, the driver refuses every call.
Device::~Device() {
  if (abandoned()) return;
  try {
    const Scope scope(*this);
    for (CudaEvent event : events_) cuda_->event_destroy(event);
    for (const auto& [stream, event] : launched_) cuda_->event_destroy(event);
    if (has_kernels()) cuda_->module_unload(module_.load());
    for (CudaStream stream : {kernels_, copies_, messages_}) cuda_->stream_destroy(stream);
  } catch (const DeviceError&) {
  }
  cuda_->context_release(device_);
}

void Device::Launched(CudaStream stream) {
  const CudaEvent event = Mark(stream);
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [of, last] : launched_) {
    if (of != stream) continue;
    events_.push_back(std::exchange(last, event));
    return;
  }
  launched_.emplace_back(stream, event);
}

// Return true if work is pending on other streams; forget the work that is done.
bool Device::PendingOnOthers(CudaStream stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  bool pending = false;
  for (auto it = launched_.begin(); it != launched_.end();) {
    if (cuda_->event_query(it->second) == kCudaNotReady) {
      pending |= it->first != stream && it->first != messages_;
      ++it;
    } else {
      events_.push_back(it->second);
      it = launched_.erase(it);
    }
  }
  return pending;
}

// Poll for a moment before enqueuing waits, because a stream that waits may have to wait for the next time slice of its
// process.
void Device::LetWait(CudaStream stream) {
  const auto until = std::chrono::steady_clock::now() + kMoment;
  do {
    if (!PendingOnOthers(stream)) return;
  } while (std::chrono::steady_clock::now() < until);
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [of, last] : launched_) {
    if (of != stream && of != messages_) WaitFor(last, stream);
  }
}

void Device::FollowOthers(const void* who, CudaStream stream) {
  if (std::exchange(last_, who) != who) LetWait(stream);
}

bool Device::IsBusy() {
  PendingOnOthers(nullptr);
  std::lock_guard<std::mutex> lock(mutex_);
  return !launched_.empty();
}

bool Device::AwaitIdle(std::chrono::steady_clock::time_point until) {
  const Scope scope(*this);
  while (IsBusy()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

void Device::Check(int result, const char* what) const {
  if (result == kCudaSuccess) return;
  throw DeviceError(std::string("could not ") + what + " GPU " + std::to_string(ordinal_) +
                    (name_.empty() ? "" : " (" + name_ + ")") + ": " + cuda_->Describe(result));
}

void Device::LoadKernels() {
  std::lock_guard<std::mutex> lock(loading_);
  if (has_kernels()) return;
  CudaModule module = nullptr;
  Check(cuda_->module_load(&module, kPtx), "load kernels on");
  Check(cuda_->module_function(&copy_, module, "hvd_copy"), "load kernels on");
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    const std::string name = std::string("hvd_reduce_") + NameOf(static_cast<DType>(dtype));
    Check(cuda_->module_function(&reduce_[static_cast<size_t>(dtype)], module, name.c_str()), "load kernels on");
  }
  for (const DType dtype : kNarrowIntegers) {
    const std::string name = std::string("hvd_average_") + NameOf(dtype);
    Check(cuda_->module_function(&average_[static_cast<size_t>(dtype)], module, name.c_str()), "load kernels on");
  }
  module_.store(module, std::memory_order_release);
}

CudaEvent Device::Mark(CudaStream stream) {
  CudaEvent event = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!events_.empty()) {
      event = events_.back();
      events_.pop_back();
    }
  }
  if (!event) Check(cuda_->event_create(&event, kCudaEventPlain), "create an event on");
  if (const int result = cuda_->event_record(event, stream); result != kCudaSuccess) {
    GiveBack(event);
    Check(result, "record an event on");
  }
  return event;
}

void Device::GiveBack(CudaEvent event) {
  std::lock_guard<std::mutex> lock(mutex_);
  events_.push_back(event);
}

void Device::Copy(const CopyTask& task, CudaStream stream) const {
  Launch(copy_, &task, task.end - task.begin, stream);
}

void Device::Reduce(DType dtype, const ReduceTask& task, CudaStream stream) const {
  Launch(reduce_[static_cast<size_t>(dtype)], &task, task.end - task.begin, stream);
}

void Device::Average(DType dtype, const AverageTask& task, CudaStream stream) const {
  Launch(average_[static_cast<size_t>(dtype)], &task, task.reduce.end - task.reduce.begin, stream);
}

void Device::Launch(CudaFunction function, const void* task, uint64_t bytes, CudaStream stream) const {
  if (bytes == 0) return;
  const uint64_t wanted = (bytes + kThreads * kBytesOfThread - 1) / (kThreads * kBytesOfThread);
  const auto blocks = static_cast<unsigned>(std::min<uint64_t>(wanted, most_blocks_));
  void* parameters[] = {const_cast<void*>(task)};
  Check(cuda_->launch(function, blocks, 1, 1, kThreads, 1, 1, 0, stream, parameters, nullptr), "launch a kernel on");
}

void Device::Zero(CudaAddress address, size_t bytes, CudaStream stream) const {
  if (bytes) Check(cuda_->memory_set(address, 0, bytes, stream), "clear memory of");
}

// The driver sends a few bytes along with its commands, and a processor of the device writes them in this process's
// next time slice. To avoid that wait, use a copy of separate rows, which the copy engines perform: two copies of two
// quarters each, of which the last may overlap the third.
void Device::CopyUp(CudaAddress to, const void* from, size_t bytes, CudaStream stream) const {
  const size_t quarter = (bytes + 3) / 4;
  if (bytes >= kAlwaysByEngine || 3 * quarter > bytes) {
    return Check(cuda_->copy_up(to, from, bytes, stream), "copy to");
  }
  const auto two_rows = [&](size_t begin, size_t distance) {
    CudaCopy2d copy{};
    copy.from_kind = kCudaHost;
    copy.from_host = static_cast<const std::byte*>(from) + begin;
    copy.to_kind = kCudaDevice;
    copy.to_device = to + begin;
    copy.from_pitch = copy.to_pitch = distance;
    copy.width = quarter;
    copy.height = 2;
    Check(cuda_->copy_2d(&copy, stream), "copy to");
  };
  two_rows(0, 2 * quarter);
  two_rows(quarter, bytes - 2 * quarter);
}

CudaStream Device::NewStream() const {
  int least = 0, greatest = 0;
  Check(cuda_->stream_priorities(&least, &greatest), "ask");
  CudaStream stream = nullptr;
  Check(cuda_->stream_create(&stream, kCudaStreamNonBlocking, greatest), "create a stream on");
  return stream;
}

CudaAddress Device::Allocate(size_t bytes) const {
  CudaAddress address = 0;
  Check(cuda_->memory_allocate(&address, bytes), "allocate memory of");
  return address;
}

}  // namespace hvd
