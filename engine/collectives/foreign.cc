// SPDX-License-Identifier: Apache-2.0
#include "collectives/foreign.h"

#include <algorithm>
#include <stdexcept>

#include "collectives/integer_average.h"
#include "collectives/kernels.h"

namespace hvd {
namespace {

constexpr size_t kSpareStagings = 4;
constexpr size_t kForeignPiece = 16 << 10;  // elements that are converted at a time, so that they stay in the cache

bool IsHalfType(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

}  // namespace

// ---- jobs

void ForeignJob::Revoke() {
  std::lock_guard<std::mutex> lock(mutex);
  revoked = true;
  load = unload = nullptr;
}

ForeignJobs::~ForeignJobs() {
  // Leak the jobs in progress, because the other library may write to their buffers as long as the process lives.
  for (auto& [id, job] : taken_) new std::shared_ptr<ForeignJob>(std::move(job));
}

void ForeignJobs::Put(std::shared_ptr<ForeignJob> job) {
  std::lock_guard<std::mutex> lock(mutex_);
  job->id = ++last_;
  queue_.push_back(std::move(job));
  changed_.notify_one();
}

ForeignJobs::Outcome ForeignJobs::Next(std::chrono::microseconds timeout, std::shared_ptr<ForeignJob>* job) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, timeout, [this] { return closed_ || !queue_.empty(); });
    if (closed_) return Outcome::kClosed;
    if (queue_.empty()) return Outcome::kNothingYet;
    *job = std::move(queue_.front());
    queue_.pop_front();
    taken_.emplace((*job)->id, *job);
  }
  Prepare(**job);
  return Outcome::kJob;
}

// Allocate the buffers and load the input. A job whose batch was aborted is run too, with undefined input, because
// other ranks may have begun it.
void ForeignJobs::Prepare(ForeignJob& job) {
  if (job.in_bytes) job.in = Take(job.in_bytes);
  job.out = Take(job.out_bytes);
  std::lock_guard<std::mutex> lock(job.mutex);
  if (!job.revoked && job.load) job.load(job);
}

void ForeignJobs::Finish(int64_t id, const std::string& error) {
  std::shared_ptr<ForeignJob> job;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = taken_.find(id);
    if (found == taken_.end()) return;
    job = std::move(found->second);
    taken_.erase(found);
  }
  {
    std::lock_guard<std::mutex> lock(job->mutex);
    if (error.empty() && !job->revoked && job->unload) job->unload(*job);
  }
  GiveBack(std::move(job->in));
  GiveBack(std::move(job->out));
  job->error = error;
  job->state.store(error.empty() ? ForeignJob::State::kDone : ForeignJob::State::kFailed, std::memory_order_release);
  std::lock_guard<std::mutex> lock(mutex_);
  if (!closed_) wake_();
}

void ForeignJobs::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

Staging ForeignJobs::Take(size_t bytes) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto fits = [bytes](const Staging& it) { return it.capacity >= bytes && it.capacity / 4 <= bytes; };
    const auto found = std::find_if(spare_.begin(), spare_.end(), fits);
    if (found != spare_.end()) {
      Staging staging = std::move(*found);
      spare_.erase(found);
      return staging;
    }
  }
  const size_t capacity = std::max<size_t>(bytes, 64);
  return {std::unique_ptr<std::byte[]>(new std::byte[capacity]), capacity};
}

void ForeignJobs::GiveBack(Staging staging) {
  if (!staging.data) return;
  std::lock_guard<std::mutex> lock(mutex_);
  spare_.push_back(std::move(staging));
  if (spare_.size() > kSpareStagings) spare_.erase(spare_.begin());
}

// ---- the state machine

ForeignMachine::~ForeignMachine() {
  if (job_) job_->Revoke();
}

Machine::Step ForeignMachine::Advance() {
  if (!job_) {
    job_ = stages_[next_++]();
    jobs_->Put(job_);
    return Step::kMoved;
  }
  const ForeignJob::State state = job_->state.load(std::memory_order_acquire);
  if (state == ForeignJob::State::kWaits) return Step::kStuck;
  if (state == ForeignJob::State::kFailed) throw std::runtime_error(job_->error);
  job_.reset();
  return next_ == stages_.size() ? Step::kDone : Step::kMoved;
}

// ---- elements

DType ForeignDType(const Reduction& reduction) {
  if (IsHalfType(reduction.dtype)) return DType::kFloat32;
  return reduction.dtype == DType::kBool ? DType::kUInt8 : reduction.SumDType();
}

void LoadForReduction(const Flat& from, const Reduction& reduction, std::byte* to) {
  const DType dtype = reduction.dtype;
  if (!IsHalfType(dtype) && !reduction.IsWidened()) {
    return Gather(from, 0, from.size(), dtype, reduction.prescale, to);
  }
  std::vector<std::byte> piece(kForeignPiece * SizeOf(dtype));
  for (size_t begin = 0; begin < from.size(); begin += piece.size()) {
    const size_t bytes = std::min(piece.size(), from.size() - begin), count = bytes / SizeOf(dtype);
    Gather(from, begin, bytes, dtype, reduction.prescale, piece.data());
    if (reduction.IsWidened()) {
      WidenIntegers(reduction, to, piece.data(), count);
    } else {
      Widen(dtype, to, piece.data(), count);
    }
    to += count * SizeOf(ForeignDType(reduction));
  }
}

void UnloadReduced(std::byte* from, const Flat& to, const Reduction& reduction) {
  const DType dtype = reduction.dtype;
  std::vector<std::byte> piece(kForeignPiece * SizeOf(dtype));
  for (size_t begin = 0; begin < to.size(); begin += piece.size()) {
    const size_t bytes = std::min(piece.size(), to.size() - begin), count = bytes / SizeOf(dtype);
    const void* source = from;
    const std::byte* result = piece.data();
    if (reduction.IsWidened()) {
      NarrowAverages(reduction, piece.data(), from, count);
    } else if (IsHalfType(dtype)) {
      Reduce(DType::kFloat32, ReduceOp::kSum, from, nullptr, &source, 1, count, reduction.postscale);
      Narrow(dtype, piece.data(), from, count);
    } else {
      Combine(reduction, from, nullptr, &source, 1, count);
      result = from;
    }
    Scatter(result, to, begin, bytes, dtype);
    from += count * SizeOf(ForeignDType(reduction));
  }
}

}  // namespace hvd
