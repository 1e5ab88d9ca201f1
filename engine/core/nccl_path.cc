// SPDX-License-Identifier: Apache-2.0
#include "core/nccl_path.h"

#include <atomic>
#include <utility>

namespace hvd {
namespace {

constexpr std::chrono::minutes kLongestMeeting(5);
constexpr std::chrono::seconds kBeforeBlame(2), kAfterLeaving(5);

}  // namespace

// Written by the thread before its job is done, read afterwards.
struct NcclPath::Shared {
  std::atomic<bool> revoked{false};  // the caller's tensors are to be let alone
  NcclId name{};
  CudaStream stream = nullptr;
  std::shared_ptr<DeviceMark> mark;  // what was launched last
  std::string trouble;
};

NcclPath::NcclPath(Devices* devices, Device* device, const Nccl* nccl, End end, int peer)
    : devices_(devices),
      device_(device),
      nccl_(nccl),
      end_(end),
      peer_(peer),
      communicator_(std::make_shared<Communicator>(nccl, device, 2, static_cast<int>(end), 0)),
      shared_(std::make_shared<Shared>()),
      thread_(devices->NewWorker("hvd-message")) {}

NcclPath::~NcclPath() {
  shared_->revoked.store(true);
  if (thread_) communicator_->LetGo();  // whatever it waits for
}

const NcclId* NcclPath::Name() {
  if (state_ == State::kNew) {
    state_ = State::kNaming;
    job_ = thread_->Put([shared = shared_, device = device_, nccl = nccl_] {
      const Device::Scope scope(*device);
      if (const int result = nccl->make_id(&shared->name); result != kNcclSuccess) {
        throw DeviceError("NCCL could not name a communicator: " + nccl->Describe(result, nullptr));
      }
    });
  }
  const bool named = job_ && job_->done.load(std::memory_order_acquire) && job_->error.empty();
  if (state_ == State::kNaming && named) Meet(shared_->name);
  return state_ == State::kConnecting || state_ == State::kOpen ? &name_ : nullptr;
}

void NcclPath::Meet(const NcclId& name) {
  name_ = name;
  state_ = State::kConnecting;
  job_ = thread_->Put([shared = shared_, communicator = communicator_, name] {
    const Device::Scope scope(communicator->device());
    const auto until = Clock::now() + kLongestMeeting;
    communicator->Open(name);
    while (!communicator->IsOpen()) {
      if (Clock::now() > until) throw DeviceError("NCCL waited too long for the other rank");
    }
    shared->stream = communicator->device().NewStream();
  });
}

void NcclPath::Launch(const Operation& operation) {
  launching_ = true;
  const bool sends = end_ == End::kSender;
  const std::string title = (sends ? "send to rank " : "recv from rank ") + std::to_string(peer_);
  job_ = thread_->Put([shared = shared_, communicator = communicator_, &times = devices_->times(), sends, title,
                       from = operation.input, to = operation.output,
                       bytes = static_cast<size_t>(operation.request.shape[0])] {
    if (shared->revoked.load()) return;
    Device* const device = &communicator->device();
    const Device::Scope scope(*device);
    const CudaEvent began = times.on() ? times.Begin(device, shared->stream) : nullptr;
    try {
      communicator->Launch([&](const Nccl& nccl, NcclComm comm) {
        const int other = 1 - communicator->me();
        const int result = sends ? nccl.send(from, bytes, kNcclUint8, other, comm, shared->stream)
                                 : nccl.receive(to, bytes, kNcclUint8, other, comm, shared->stream);
        communicator->Check(result, "exchange a message");
      });
    } catch (...) {
      if (began) times.Drop(device, began);
      throw;
    }
    if (began) times.End(device, began, shared->stream, title);
    device->Launched(shared->stream, true);
    shared->mark = std::make_shared<DeviceMark>(device, device->Mark(shared->stream));
  });
}

void NcclPath::Finish(Completions* completions) {
  launching_ = false;
  std::unique_ptr<Operation> done = std::move(waiting_.front());
  waiting_.pop_front();
  if (end_ == End::kReceiver) --committed_;
  --devices_->to_launch();
  if (shared_->mark) last_ = done->handle->launched = std::exchange(shared_->mark, nullptr);
  completions->Finish(std::move(done), Status::Ok());
}

// Whether none is under way.
bool NcclPath::IsJobOver(Completions* completions) {
  if (!job_) return true;
  if (!job_->done.load(std::memory_order_acquire)) return false;
  if (job_->error.empty()) {
    job_.reset();
    return true;
  }
  if (!left_.ok()) {  // which explains it
    Fail(completions, left_);
    return false;
  }
  const auto now = Clock::now();
  if (failed_ == Clock::time_point()) failed_ = now;
  if (now - failed_ < kBeforeBlame) return false;
  throw DeviceError("messages with rank " + std::to_string(peer_) + ": " + job_->error +
                    ". HOROVOD_GPU_TRANSPORT=own lets them go through host memory");
}

bool NcclPath::Step(Completions* completions) {
  if (state_ == State::kEnded) return false;
  if (!left_.ok() && !waiting_.empty() && Clock::now() - left_at_ > kAfterLeaving) Fail(completions, left_);
  if (state_ == State::kNew || state_ == State::kEnded) return false;
  const bool names = state_ == State::kNaming && !(job_->done.load(std::memory_order_acquire) && !job_->error.empty());
  if (names || !IsJobOver(completions)) return false;  // Name goes on from there
  state_ = State::kOpen;
  bool moved = false;
  if (launching_) {
    Finish(completions);
    moved = true;
  }
  while (MayLaunch() && waiting_.front()->request.shape[0] == 0) {
    Finish(completions);
    moved = true;
  }
  if (!MayLaunch()) return moved;
  Launch(*waiting_.front());
  return true;
}

void NcclPath::Fail(Completions* completions, const Status& status) {
  if (state_ == State::kEnded) return;
  const bool waits = state_ == State::kConnecting || launching_;
  state_ = State::kEnded;
  launching_ = false;
  shared_->revoked.store(true);
  if (waits) Abort();
  devices_->to_launch() -= static_cast<int>(waiting_.size());
  for (auto& operation : std::exchange(waiting_, {})) completions->Finish(std::move(operation), status);
}

void NcclPath::OnLeft(Completions* completions, const Status& status) {
  left_ = status;
  left_at_ = Clock::now();
  while (end_ == End::kReceiver && waiting_.size() > committed_) {
    completions->Finish(std::move(waiting_.back()), status);
    waiting_.pop_back();
    --devices_->to_launch();
  }
}

bool NcclPath::IsStuck(Clock::time_point now) const {
  return !left_.ok() && last_ && now - left_at_ > kAfterLeaving && !last_->IsDone();
}

std::string NcclPath::Trouble() {
  if (state_ != State::kOpen || !left_.ok() || (look_ && !look_->done.load(std::memory_order_acquire))) return "";
  if (look_ && !shared_->trouble.empty()) return shared_->trouble;
  look_ = thread_->Put([shared = shared_, communicator = communicator_] {
    const Device::Scope scope(communicator->device());
    shared->trouble = communicator->Trouble();
  });
  return "";
}

void NcclPath::Abort() {
  communicator_->LetGo();
  thread_->PutFirst([communicator = communicator_] {
    const Device::Scope scope(communicator->device());
    communicator->Abort();
  });
}

void NcclPath::Leave(bool whole, Clock::time_point until) {
  thread_.reset();
  try {
    const Device::Scope scope(*device_);
    whole ? communicator_->Close(until) : communicator_->Abort();
    if (shared_->stream && !device_->abandoned()) device_->cuda().stream_destroy(shared_->stream);
  } catch (const DeviceError&) {  // the driver has come to its end before us
  }
}

}  // namespace hvd
