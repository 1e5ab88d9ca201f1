// SPDX-License-Identifier: Apache-2.0
// The members of a set find out whether NCCL serves them, when the first of their tensors on GPUs comes. They tell
// their first member, which decides for all: who has which GPU, then whether those that share one reach each other's
// memory there, then who has which NCCL, then whether all are connected. Where some share a GPU, one of them leads
// there, and NCCL connects the leaders alone.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/gpu_layout.h"
#include "collectives/gpu_mates.h"
#include "collectives/machine.h"
#include "devices/communicator.h"
#include "devices/devices.h"

namespace hvd {

// What the settings of a set's members ask for, which need not be the same on all. It decides which way their tensors
// go: members that looked at their own settings might go different ways, and wait for each other without end.
struct GpuWishes {
  uint32_t nccl;           // or nothing
  uint32_t ipc;            // likewise
  uint32_t staged;         // through host memory, whatever others ask for
  uint32_t not_nccl;       // any way but that
  uint32_t deterministic;  // bits of sums must not depend on where ranks are
  uint32_t unused;
  uint64_t staged_bytes;  // less goes through host memory: the first member's, and so is the next
  uint64_t slot_bytes;    // in the GPU's memory
};

// What a member tells, and what it hears.
struct NcclPassport {
  CudaUuid uuid;
  int32_t wish;  // GpuTransport
  uint32_t deterministic;
  uint64_t staged_bytes, slot_bytes;
  int32_t version;  // of its NCCL; 0: it has none that it can use
  // By which NCCL tells hosts apart where the user says so (NCCL_HOSTID): it takes ranks of one GPU with different ids
  // for ranks of different GPUs. Empty: it finds out for itself. Told by those who insist on NCCL.
  std::array<char, 64> host_id;
  std::array<char, 256> why_not;
};
struct NcclVerdict {  // followed by the number of each member's GPU
  uint32_t go_on;
  uint32_t sharing;  // some members have the same GPU
  int32_t version;   // of all
  uint32_t unused;
  GpuWishes wishes;
  uint64_t fused_bytes;
  NcclId id;
  std::array<char, 512> why_not;
};

// What one of them asks for holds for all.
GpuWishes WishesOf(const std::vector<NcclPassport>& all);
// Whether some have the same GPU, as NCCL tells them apart.
bool ShareGpus(const std::vector<NcclPassport>& all);
// Who shares a GPU; nobody, if they are to be left to NCCL as they are.
GpuLayout LayoutOf(const std::vector<NcclPassport>& all);
// The first who wants another way, in words.
std::string AgainstTheirWishes(const std::vector<NcclPassport>& all, const std::vector<int>& ranks);
// What the first member makes of what all tell, by member; `ranks`: their names. Empty: nothing speaks against it.
std::string AgainstTheirGpus(const std::vector<NcclPassport>& all, const std::vector<int>& ranks);
std::string AgainstTheirLibraries(const std::vector<NcclPassport>& all, const std::vector<int>& ranks);
std::string AgainstTheirConnections(const std::vector<NcclPassport>& all, const std::vector<int>& ranks);

class NcclMeeting {
 public:
  struct Options {
    NcclPassport told{};  // of settings
    NcclFiles files;
    size_t fused_bytes = 0;  // see GoesThroughBuffer
    std::chrono::milliseconds longest_launch{0};
    // Between members that share a GPU; null: they do not share memory of the host.
    std::function<std::shared_ptr<Lane>(const std::vector<int>& members)> lane_on_gpu;
  };

  NcclMeeting(Devices* devices, Device* device, Lane* lane, std::vector<int> ranks, Options options);
  ~NcclMeeting();
  NcclMeeting(const NcclMeeting&) = delete;
  NcclMeeting& operator=(const NcclMeeting&) = delete;

  // kDone: it `serves`, or `why_not` says why it does not. All members come to the same. Until then the lane is the
  // meeting's.
  Machine::Step Advance();
  bool serves() const { return serves_; }
  const std::string& why_not() const { return why_not_; }
  // Since it is over, of all members.
  const GpuWishes& wishes() const { return verdict_.wishes; }
  bool forced() const { return verdict_.wishes.nccl != 0; }
  bool sharing() const { return verdict_.sharing != 0; }
  size_t fused_bytes() const { return static_cast<size_t>(verdict_.fused_bytes); }
  int version() const { return verdict_.version; }
  // If it serves:
  const GpuLayout& layout() const { return layout_; }
  int me() const { return lane_->me(); }
  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }  // null: another member leads
  const GpuMates* mates() const { return mates_.get(); }                               // null: nobody shares a GPU

  // A member is lost: nothing waits for one any longer.
  void LetGo() const;
  // What NCCL has found wrong since it was last asked, on the launcher: asks again. Empty: nothing so far.
  std::string Trouble();
  // Gives up what is left, on a thread for that.
  void LeaveLater(std::chrono::steady_clock::time_point until);
  // The same here, after the launcher has ended. `whole`: nobody is lost.
  void Leave(bool whole, std::chrono::steady_clock::time_point until);

 private:
  enum class Round { kGpus, kMates, kLibraries, kConnections, kOver };
  struct Shared;  // with the launcher

  bool Prepares();
  bool MeetsMates();
  void PutJob();
  bool Tells();
  bool Decides();
  bool Hears();
  std::string Judgement();
  void Judge();
  void Conclude();
  Round After(Round round) const;
  bool LeadsHere() const { return layout_.Leads(lane_->me()); }
  NcclPassport Own() const;
  size_t VerdictBytes() const { return sizeof(NcclVerdict) + ranks_.size() * sizeof(int32_t); }

  Devices* devices_;
  Device* device_;
  Lane* lane_;
  std::vector<int> ranks_;
  Options options_;
  Round round_ = Round::kGpus;
  bool prepared_ = false, told_ = false, decided_ = false;
  std::vector<NcclPassport> passports_;  // the first member's: what it has heard
  std::vector<char> heard_;
  NcclVerdict verdict_{};
  GpuLayout layout_;
  std::unique_ptr<GpuMates> mates_;
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<DeviceWorker::Job> job_, look_;
  std::chrono::steady_clock::time_point connect_until_{};
  std::shared_ptr<Communicator> communicator_;
  std::string why_not_;
  bool serves_ = false;
};

}  // namespace hvd
