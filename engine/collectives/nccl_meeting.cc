// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl_meeting.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace hvd {
namespace {

constexpr std::chrono::minutes kLongestMeeting(5);

template <size_t kSize>
void PutText(const std::string& text, std::array<char, kSize>* to) {
  to->fill(0);
  text.copy(to->data(), kSize - 1);
}
template <size_t kSize>
std::string TextOf(const std::array<char, kSize>& from) {
  return std::string(from.data(), strnlen(from.data(), kSize));
}

std::string RanksText(const std::vector<int>& ranks) {
  std::string text = ranks.size() > 1 ? "ranks " : "rank ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i ? "," : "") + std::to_string(ranks[i]);
  return text;
}

bool WantsNcclAlone(const NcclPassport& passport) { return passport.wish == kGpuNccl; }

}  // namespace

std::string AgainstTheirGpus(const std::vector<NcclPassport>& all, const std::vector<int>& ranks) {
  std::map<std::string, std::vector<int>> by_gpu;
  for (size_t j = 0; j < all.size(); ++j) {
    if (all[j].wish != kGpuAuto && all[j].wish != kGpuNccl) {
      const char* const wish = all[j].wish == kGpuIpc ? "ipc" : all[j].wish == kGpuStaged ? "staged" : "own";
      return "rank " + std::to_string(ranks[j]) + " asks for HOROVOD_GPU_TRANSPORT=" + wish;
    }
    by_gpu[std::string(all[j].uuid.bytes, sizeof all[j].uuid.bytes)].push_back(ranks[j]);
  }
  if (std::any_of(all.begin(), all.end(), WantsNcclAlone)) return "";  // NCCL knows best whether it can
  for (const auto& [uuid, sharing] : by_gpu) {
    if (sharing.size() > 1) return RanksText(sharing) + " share a GPU, which NCCL refuses";
  }
  return "";
}

std::string AgainstTheirLibraries(const std::vector<NcclPassport>& all, const std::vector<int>& ranks) {
  std::map<int, std::vector<int>> by_version;
  for (size_t j = 0; j < all.size(); ++j) {
    if (all[j].version == 0) return "rank " + std::to_string(ranks[j]) + " has no NCCL: " + TextOf(all[j].why_not);
    by_version[all[j].version].push_back(ranks[j]);
  }
  if (by_version.size() < 2) return "";
  std::string text;
  for (const auto& [version, having] : by_version) {
    text += (text.empty() ? "" : ", ") + RanksText(having) + (having.size() > 1 ? " have " : " has ") +
            NcclVersionText(version);
  }
  return "ranks have different versions of NCCL: " + text;
}

std::string AgainstTheirConnections(const std::vector<NcclPassport>& all, const std::vector<int>& ranks) {
  for (size_t j = 0; j < all.size(); ++j) {
    const std::string why = TextOf(all[j].why_not);
    if (!why.empty()) return "on rank " + std::to_string(ranks[j]) + " " + why;
  }
  return "";
}

// Written by the launcher before its job is done, read afterwards.
struct NcclMeeting::Shared {
  const Nccl* nccl = nullptr;
  NcclId id{};
  bool connected = false;
  std::string why_not, trouble;
};

NcclMeeting::NcclMeeting(Devices* devices, Device* device, Lane* lane, std::vector<int> ranks, Options options)
    : devices_(devices),
      device_(device),
      lane_(lane),
      ranks_(std::move(ranks)),
      options_(std::move(options)),
      passports_(ranks_.size()),
      heard_(ranks_.size(), 0),
      shared_(std::make_shared<Shared>()) {}

NcclMeeting::~NcclMeeting() = default;

// In each round a member prepares what it has to tell, tells the first, and hears the verdict at the same index.
Machine::Step NcclMeeting::Advance() {
  if (round_ == Round::kOver) return Machine::Step::kDone;
  bool moved = Prepares();
  moved |= Tells();
  moved |= lane_->me() == 0 ? Decides() : Hears();
  if (round_ == Round::kOver) return Machine::Step::kDone;
  return moved ? Machine::Step::kMoved : Machine::Step::kStuck;
}

bool NcclMeeting::Prepares() {
  if (prepared_) return false;
  if (round_ == Round::kGpus) return prepared_ = true;
  if (!job_) {
    PutJob();
    return true;
  }
  if (!job_->done.load(std::memory_order_acquire)) return false;
  shared_->why_not += job_->error;
  const bool again = round_ == Round::kConnections && job_->error.empty() && !shared_->connected;
  job_.reset();
  if (!again) prepared_ = true;
  return true;
}

void NcclMeeting::PutJob() {
  if (round_ == Round::kLibraries) {
    job_ = devices_->launcher().Put(
        [shared = shared_, device = device_, files = options_.files, leads = lane_->me() == 0] {
          const Device::Scope scope(*device);
          device->LoadKernels();
          shared->nccl = Nccl::Open(files, &shared->why_not);
          if (!shared->nccl || !leads) return;
          if (const int result = shared->nccl->make_id(&shared->id); result != kNcclSuccess) {
            throw DeviceError("NCCL could not name a communicator: " + shared->nccl->Describe(result, nullptr));
          }
        });
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  const bool begins = connect_until_ == decltype(connect_until_){};
  if (begins) connect_until_ = now + kLongestMeeting;
  const bool late = now > connect_until_;
  job_ = devices_->launcher().Put([shared = shared_, communicator = communicator_, id = verdict_.id, begins, late] {
    const Device::Scope scope(communicator->device());
    try {
      if (late) throw DeviceError("NCCL waited too long for other ranks");
      if (begins) communicator->Open(id);
      shared->connected = communicator->IsOpen();
    } catch (const DeviceError&) {
      communicator->Abort();
      throw;
    }
  });
}

NcclPassport NcclMeeting::Own() const {
  NcclPassport own{};
  own.uuid = device_->uuid();
  own.wish = options_.wish;
  if (shared_->nccl && shared_->why_not.empty()) own.version = shared_->nccl->version;
  PutText(shared_->why_not, &own.why_not);
  return own;
}

bool NcclMeeting::Tells() {
  if (!prepared_ || told_) return false;
  const NcclPassport own = Own();
  if (lane_->me() == 0) {
    passports_[0] = own;
    heard_[0] = 1;
    return told_ = true;
  }
  if (!lane_->CanPost()) return false;
  std::memcpy(lane_->Slot(), &own, sizeof own);
  lane_->in_memory(0) ? lane_->PostNothing(1) : lane_->PostTo(0, lane_->Slot(), sizeof own);
  return told_ = true;
}

// At the first member. Bad news is passed on before all have spoken: others may be waiting in vain for the one that it
// is about.
bool NcclMeeting::Decides() {
  bool moved = false;
  for (int j = 1; j < lane_->members(); ++j) {
    if (heard_[static_cast<size_t>(j)]) continue;
    const std::byte* const said = lane_->Fetch(j, Lane::Layout::kMulticast, sizeof(NcclPassport));
    if (!said) continue;
    std::memcpy(&passports_[static_cast<size_t>(j)], said, sizeof(NcclPassport));
    heard_[static_cast<size_t>(j)] = 1;
    moved = true;
  }
  const bool all = std::count(heard_.begin(), heard_.end(), 0) == 0;
  const bool early = round_ == Round::kConnections && !AgainstTheirConnections(passports_, ranks_).empty();
  if (!decided_ && (all || early)) {
    if (!lane_->CanPost()) return moved;
    Judge();
    std::memcpy(lane_->Slot(), &verdict_, sizeof verdict_);
    lane_->PostMulticast(sizeof verdict_);
    decided_ = moved = true;
    if (!verdict_.go_on && communicator_) communicator_->LetGo();
  }
  if (decided_ && all) Conclude(verdict_);
  return moved;
}

void NcclMeeting::Judge() {
  std::string against;
  switch (round_) {
    case Round::kGpus:
      against = AgainstTheirGpus(passports_, ranks_);
      verdict_.forced = std::any_of(passports_.begin(), passports_.end(), WantsNcclAlone);
      break;
    case Round::kLibraries:
      against = AgainstTheirLibraries(passports_, ranks_);
      break;
    default:
      against = AgainstTheirConnections(passports_, ranks_);
  }
  verdict_.go_on = against.empty();
  verdict_.buffer_bytes = options_.buffer_bytes;
  verdict_.id = shared_->id;
  PutText(against, &verdict_.why_not);
}

bool NcclMeeting::Hears() {
  if (!decided_) {
    const std::byte* const said = lane_->Fetch(0, Lane::Layout::kMulticast, sizeof verdict_);
    if (!said) return false;
    std::memcpy(&verdict_, said, sizeof verdict_);
    decided_ = true;
    if (!verdict_.go_on && communicator_) communicator_->LetGo();
  }
  if (!told_) return false;  // what is waited for in vain has to end first
  Conclude(verdict_);
  return true;
}

void NcclMeeting::Conclude(const NcclVerdict& verdict) {
  lane_->Release();
  prepared_ = told_ = decided_ = false;
  std::fill(heard_.begin(), heard_.end(), 0);
  for (NcclPassport& passport : passports_) passport = {};
  forced_ = verdict.forced != 0;
  if (!verdict.go_on) {
    why_not_ = TextOf(verdict.why_not);
    round_ = Round::kOver;
    if (communicator_) devices_->launcher().Put([gone = std::move(communicator_)]() mutable { gone.reset(); });
    communicator_ = nullptr;
  } else if (round_ == Round::kGpus) {
    round_ = Round::kLibraries;
  } else if (round_ == Round::kLibraries) {
    communicator_ = std::make_shared<Communicator>(shared_->nccl, device_, lane_->members(), lane_->me(),
                                                   static_cast<size_t>(verdict.buffer_bytes));
    round_ = Round::kConnections;
  } else {
    round_ = Round::kOver;
  }
}

int NcclMeeting::version() const { return shared_->nccl->version; }

std::string NcclMeeting::Trouble() {
  if (round_ != Round::kOver || !communicator_ || (look_ && !look_->done.load(std::memory_order_acquire))) return "";
  if (look_ && !shared_->trouble.empty()) return shared_->trouble;
  look_ = devices_->launcher().Put([shared = shared_, communicator = communicator_] {
    const Device::Scope scope(communicator->device());
    shared->trouble = communicator->Trouble();
  });
  return "";
}

// Others may still need what this member has sent last: NCCL waits for that, but not for ever.
void NcclMeeting::LeaveLater(std::chrono::steady_clock::time_point until) {
  if (!communicator_) return;
  devices_->launcher().Put([communicator = std::exchange(communicator_, nullptr), until] {
    const Device::Scope scope(communicator->device());
    communicator->Close(until);
  });
}

void NcclMeeting::Leave(bool whole, std::chrono::steady_clock::time_point until) {
  if (!communicator_) return;
  try {
    const Device::Scope scope(*device_);
    whole ? communicator_->Close(until) : communicator_->Abort();
  } catch (const DeviceError&) {  // the driver has come to its end before us
  }
  communicator_.reset();
}

}  // namespace hvd
