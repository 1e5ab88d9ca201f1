// SPDX-License-Identifier: Apache-2.0
#include "devices/communicator.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/half.h"

namespace hvd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostFactors = 64;  // maximum number of factors that are kept
constexpr std::chrono::microseconds kShortestLook(5), kLongestLook(1000);

// Store the factor in the type of the values that are summed.
void PutFactor(double factor, DType dtype, std::byte* bytes) {
  if (dtype == DType::kFloat64) {
    std::memcpy(bytes, &factor, sizeof factor);
  } else if (dtype == DType::kFloat32) {
    const auto single = static_cast<float>(factor);
    std::memcpy(bytes, &single, sizeof single);
  } else {
    const auto single = static_cast<float>(factor);
    const uint16_t half = dtype == DType::kFloat16 ? Float16FromFloat(single) : BFloat16FromFloat(single);
    std::memcpy(bytes, &half, sizeof half);
  }
}

}  // namespace

Communicator::Communicator(const Nccl* nccl, Device* device, int members, int me, size_t buffer_bytes)
    : nccl_(*nccl), device_(device), members_(members), me_(me), buffer_bytes_(buffer_bytes) {}

Communicator::~Communicator() {
  try {
    const Device::Scope scope(*device_);
    Abort();
  } catch (const DeviceError&) {
  }
}

void Communicator::Check(int result, const char* what) const {
  if (result == kNcclSuccess || result == kNcclInProgress) return;
  throw DeviceError(std::string("NCCL could not ") + what + ": " + nccl_.Describe(result, comm_));
}

// Return the result of a call that may continue after it has returned.
int Communicator::Await(int result, Clock::time_point until) {
  std::chrono::microseconds pause = kShortestLook;
  while (result == kNcclInProgress) {
    if (let_go_.load()) throw DeviceError("NCCL was ended");
    if (Clock::now() > until) throw DeviceError("NCCL waited too long for other ranks");
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestLook);
    const int asked = nccl_.async_error(comm_, &result);
    if (asked != kNcclSuccess) return asked;
  }
  return result;
}

void Communicator::Open(const NcclId& id) {
  NcclConfig config;
  Check(nccl_.init_rank(&comm_, members_, id, me_, &config), "connect the ranks");
}

bool Communicator::IsOpen() {
  if (let_go_.load()) throw DeviceError("NCCL was ended");
  int result = kNcclSuccess;
  Check(nccl_.async_error(comm_, &result), "tell whether the ranks are connected");
  // Limit the rate of polling, because the caller will ask again.
  if (result == kNcclInProgress) std::this_thread::sleep_for(kLongestLook / 4);
  Check(result, "connect the ranks");
  return result == kNcclSuccess;
}

void Communicator::Launch(const std::function<void(const Nccl&, NcclComm)>& calls) {
  if (let_go_.load() || !comm_) throw DeviceError("NCCL was ended");
  Check(nccl_.group_start(), "begin a group");
  try {
    calls(nccl_, comm_);
  } catch (...) {
    nccl_.group_end();
    throw;
  }
  Check(Await(nccl_.group_end(), Clock::now() + longest_launch_), "launch an operation");
}

std::string Communicator::Trouble() {
  if (!comm_ || let_go_.load()) return "";
  int result = kNcclSuccess;
  const int asked = nccl_.async_error(comm_, &result);
  if (asked != kNcclSuccess) result = asked;
  return result == kNcclSuccess || result == kNcclInProgress ? "" : nccl_.Describe(result, comm_);
}

int Communicator::SumTimes(double factor, DType dtype) {
  if (factor == 1.0) return kNcclSum;
  // Limit the number of operations, because a factor that changes with every step adds one per step. NCCL has read the
  // factors of launched operations, so they can be destroyed.
  if (factors_.size() >= kMostFactors && !factors_.count({dtype, factor})) {
    for (const auto& [of, operation] : std::exchange(factors_, {})) {
      Check(nccl_.drop_factor(operation, comm_), "free a scale factor");
    }
  }
  const auto [found, is_new] = factors_.try_emplace({dtype, factor}, 0);
  if (!is_new) return found->second;
  std::byte bytes[sizeof(double)];
  PutFactor(factor, dtype, bytes);
  const int result = nccl_.make_factor(&found->second, bytes, NcclTypeOf(dtype), kNcclOnHost, comm_);
  if (result != kNcclSuccess) factors_.erase(found);
  Check(result, "create a scale factor");
  return found->second;
}

// Let `stream` wait for the last batch, because all batches use this memory, possibly on different streams.
void Communicator::GoAfterLast(CudaStream stream) const {
  if (last_ && last_stream_ != stream) device_->WaitFor(last_, stream);
}

CudaAddress Communicator::Buffer(CudaStream stream) {
  if (!buffer_) buffer_ = device_->Allocate(buffer_bytes_);
  GoAfterLast(stream);
  return buffer_;
}

CudaAddress Communicator::Scratch(size_t bytes, CudaStream stream) {
  if (scratch_bytes_ < bytes) {
    if (scratch_) device_->cuda().memory_free(scratch_);
    scratch_ = 0;
    scratch_ = device_->Allocate(bytes);
    scratch_bytes_ = bytes;
  }
  GoAfterLast(stream);
  return scratch_;
}

void Communicator::Launched(CudaStream stream) {
  const CudaEvent mark = device_->Mark(stream);
  if (last_) device_->GiveBack(last_);
  last_ = mark;
  last_stream_ = stream;
  device_->Launched(stream);
}

void Communicator::Close(Clock::time_point until) {
  if (!comm_) return FreeMemory();
  try {
    Check(Await(nccl_.finalize(comm_), until), "finish");
    nccl_.destroy(std::exchange(comm_, nullptr));
  } catch (const DeviceError&) {
  }
  Abort();
}

void Communicator::Abort() {
  if (comm_) nccl_.abort(std::exchange(comm_, nullptr));
  FreeMemory();
}

void Communicator::AbortAll(const std::vector<std::shared_ptr<Communicator>>& all) {
  if (all.empty()) return;
  const Nccl& nccl = all[0]->nccl_;
  const Device::Scope scope(*all[0]->device_);
  nccl.group_start();
  for (const auto& one : all) {
    if (one->comm_) nccl.abort(std::exchange(one->comm_, nullptr));
  }
  nccl.group_end();
  for (const auto& one : all) {
    const Device::Scope there(*one->device_);
    one->FreeMemory();
  }
}

void Communicator::FreeMemory() {
  if (device_->abandoned()) return;
  if (last_) device_->GiveBack(std::exchange(last_, nullptr));
  for (CudaAddress* memory : {&buffer_, &scratch_}) {
    if (*memory) device_->cuda().memory_free(std::exchange(*memory, 0));
  }
}

}  // namespace hvd
