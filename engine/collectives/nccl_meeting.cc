// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl_meeting.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "base/rank_list.h"

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

bool WantsNcclAlone(const NcclPassport& passport) { return passport.wish == kGpuNccl; }

// Return the names of the members' GPUs, by which NCCL distinguishes GPUs.
std::vector<std::string> GpusOf(const std::vector<NcclPassport>& all) {
  const bool forced = std::any_of(all.begin(), all.end(), WantsNcclAlone);
  std::vector<std::string> names;
  for (const NcclPassport& one : all) {
    names.push_back(std::string(one.uuid.bytes, sizeof one.uuid.bytes) + (forced ? TextOf(one.host_id) : ""));
  }
  return names;
}

template <typename T>
std::vector<T> OfLeaders(const std::vector<T>& by_member, const GpuLayout& layout) {
  std::vector<T> leaders;
  for (int gpu = 0; gpu < layout.gpus(); ++gpu) {
    leaders.push_back(by_member[static_cast<size_t>(layout.MembersOn(gpu)[0])]);
  }
  return leaders;
}

}  // namespace

GpuWishes WishesOf(const std::vector<NcclPassport>& all) {
  GpuWishes wishes{};
  for (const NcclPassport& one : all) {
    wishes.nccl |= WantsNcclAlone(one);
    wishes.ipc |= one.wish == kGpuIpc;
    wishes.staged |= one.wish == kGpuStaged;
    wishes.not_nccl |= one.wish != kGpuAuto && !WantsNcclAlone(one);
    wishes.deterministic |= one.deterministic;
  }
  if (wishes.staged) wishes.ipc = 0;
  wishes.staged_bytes = all[0].staged_bytes;
  wishes.slot_bytes = all[0].slot_bytes;
  return wishes;
}

bool ShareGpus(const std::vector<NcclPassport>& all) {
  const std::vector<std::string> names = GpusOf(all);
  return std::set<std::string>(names.begin(), names.end()).size() < all.size();
}

GpuLayout LayoutOf(const std::vector<NcclPassport>& all) {
  GpuLayout layout = GpuLayout::Of(GpusOf(all));
  // With a single GPU, NCCL has nothing to exchange. If a member insists on NCCL, let NCCL report that it cannot serve.
  return layout.gpus() == 1 ? GpuLayout::Apart(all.size()) : layout;
}

std::string AgainstTheirWishes(const std::vector<NcclPassport>& all, const std::vector<int>& ranks) {
  for (size_t j = 0; j < all.size(); ++j) {
    if (all[j].wish != kGpuAuto && all[j].wish != kGpuNccl) {
      const char* const wish = all[j].wish == kGpuIpc ? "ipc" : all[j].wish == kGpuStaged ? "staged" : "own";
      return "rank " + std::to_string(ranks[j]) + " asks for HOROVOD_GPU_TRANSPORT=" + wish;
    }
  }
  return "";
}

std::string AgainstTheirGpus(const std::vector<NcclPassport>& all, const std::vector<int>& ranks) {
  if (const std::string wish = AgainstTheirWishes(all, ranks); !wish.empty()) return wish;
  // with such a setting, NCCL itself decides whether it can serve
  if (std::any_of(all.begin(), all.end(), WantsNcclAlone)) return "";
  const auto on_first = [&](const NcclPassport& one) {
    return std::equal(std::begin(one.uuid.bytes), std::end(one.uuid.bytes), all[0].uuid.bytes);
  };
  const bool one_gpu = all.size() > 1 && std::all_of(all.begin(), all.end(), on_first);
  return one_gpu ? NameRanks(ranks) + " share a GPU, which NCCL refuses" : "";
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
    text += (text.empty() ? "" : ", ") + NameRanks(having) + (having.size() > 1 ? " have " : " has ") +
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

// Data that the launcher thread writes before its job is done; it is read only afterwards.
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

// Advance the current round: prepare this member's report, send it to the first member, and receive the decision at the
// same lane index.
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
  if (round_ == Round::kMates) return MeetsMates();
  if (round_ == Round::kGpus || !LeadsHere()) return prepared_ = true;
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

bool NcclMeeting::MeetsMates() {
  if (!mates_) {
    const std::vector<int>& members = layout_.MembersOn(layout_.GpuOf(lane_->me()));
    mates_ = std::make_unique<GpuMates>(devices_, device_, options_.lane_on_gpu(members),
                                        static_cast<size_t>(verdict_.wishes.slot_bytes));
  }
  const Machine::Step step = mates_->Advance();
  if (step != Machine::Step::kDone) return step == Machine::Step::kMoved;
  shared_->why_not = mates_->why_not();
  return prepared_ = true;
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
  NcclPassport own = options_.told;
  own.uuid = device_->uuid();
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

// Collect the reports and decide; runs on the first member. While connecting, announce a failure before all members
// have reported, because others may be waiting in vain for the member that failed.
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
    std::memcpy(lane_->Slot() + sizeof verdict_, layout_.gpu_of().data(), VerdictBytes() - sizeof verdict_);
    lane_->PostMulticast(VerdictBytes());
    decided_ = moved = true;
    if (!verdict_.go_on && communicator_) communicator_->LetGo();
  }
  if (decided_ && all) Conclude();
  return moved;
}

std::string NcclMeeting::Judgement() {
  switch (round_) {
    case Round::kGpus:
      return AgainstTheirGpus(passports_, ranks_);
    case Round::kMates: {
      const std::string against = AgainstTheirConnections(passports_, ranks_);
      return against.empty() ? "" : "some ranks share a GPU, which NCCL refuses, and " + against;
    }
    case Round::kLibraries:
      return AgainstTheirLibraries(OfLeaders(passports_, layout_), OfLeaders(ranks_, layout_));
    default:
      return AgainstTheirConnections(passports_, ranks_);
  }
}

void NcclMeeting::Judge() {
  const std::string against = Judgement();
  if (round_ == Round::kGpus) {
    verdict_.wishes = WishesOf(passports_);
    verdict_.sharing = ShareGpus(passports_);
    layout_ = LayoutOf(passports_);
  }
  if (round_ == Round::kLibraries) verdict_.version = passports_[0].version;
  verdict_.go_on = against.empty();
  verdict_.fused_bytes = options_.fused_bytes;
  verdict_.id = shared_->id;
  PutText(against, &verdict_.why_not);
}

bool NcclMeeting::Hears() {
  if (!decided_) {
    const std::byte* const said = lane_->Fetch(0, Lane::Layout::kMulticast, VerdictBytes());
    if (!said) return false;
    std::memcpy(&verdict_, said, sizeof verdict_);
    std::vector<int32_t> gpu_of(ranks_.size());
    std::memcpy(gpu_of.data(), said + sizeof verdict_, VerdictBytes() - sizeof verdict_);
    layout_ = GpuLayout(std::move(gpu_of));
    decided_ = true;
    if (!verdict_.go_on && communicator_) communicator_->LetGo();
  }
  if (!told_) return false;  // this member's own attempt may wait in vain, so it must end first
  Conclude();
  return true;
}

NcclMeeting::Round NcclMeeting::After(Round round) const {
  switch (round) {
    case Round::kGpus:
      return layout_.shared() ? Round::kMates : Round::kLibraries;
    case Round::kMates:
      return Round::kLibraries;
    case Round::kLibraries:
      return Round::kConnections;
    default:
      return Round::kOver;
  }
}

void NcclMeeting::Conclude() {
  lane_->Release();
  prepared_ = told_ = decided_ = false;
  std::fill(heard_.begin(), heard_.end(), 0);
  for (NcclPassport& passport : passports_) passport = {};
  if (!verdict_.go_on) {
    why_not_ = TextOf(verdict_.why_not);
    round_ = Round::kOver;
    if (communicator_) devices_->launcher().Put([gone = std::move(communicator_)]() mutable { gone.reset(); });
    communicator_ = nullptr;
    if (mates_) mates_->LeaveLater({});
    mates_.reset();
    return;
  }
  round_ = After(round_);
  serves_ = round_ == Round::kOver;
  if (round_ == Round::kConnections && LeadsHere()) {
    communicator_ = std::make_shared<Communicator>(shared_->nccl, device_, layout_.gpus(), layout_.GpuOf(lane_->me()),
                                                   static_cast<size_t>(verdict_.wishes.slot_bytes));
    communicator_->set_longest_launch(options_.longest_launch);
  }
}

void NcclMeeting::LetGo() const {
  if (communicator_) communicator_->LetGo();
  if (mates_) mates_->LetGo();
}

std::string NcclMeeting::Trouble() {
  if (round_ != Round::kOver || !communicator_ || (look_ && !look_->done.load(std::memory_order_acquire))) return "";
  if (look_ && !shared_->trouble.empty()) return shared_->trouble;
  look_ = devices_->launcher().Put([shared = shared_, communicator = communicator_] {
    const Device::Scope scope(communicator->device());
    shared->trouble = communicator->Trouble();
  });
  return "";
}

// Close the communicator on the launcher thread. Other members may still need data that this member sent last; NCCL
// waits for that, at most until `until`.
void NcclMeeting::LeaveLater(std::chrono::steady_clock::time_point until) {
  if (mates_) mates_->LeaveLater(until);
  if (!communicator_) return;
  devices_->launcher().Put([communicator = std::exchange(communicator_, nullptr), until] {
    const Device::Scope scope(communicator->device());
    communicator->Close(until);
  });
}

void NcclMeeting::Leave(bool whole, std::chrono::steady_clock::time_point until) {
  if (mates_) mates_->AwaitOthers(whole ? until : std::chrono::steady_clock::now());
  mates_.reset();
  if (!communicator_) return;
  try {
    const Device::Scope scope(*device_);
    whole ? communicator_->Close(until) : communicator_->Abort();
  } catch (const DeviceError&) {  // thrown if the CUDA driver was shut down earlier
  }
  communicator_.reset();
}

}  // namespace hvd
