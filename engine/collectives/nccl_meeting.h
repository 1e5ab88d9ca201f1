// SPDX-License-Identifier: Apache-2.0
// Setup negotiation of NCCL for a set, when the first of its tensors on GPUs arrives. In each round the members report
// to the first member, which decides for all. The rounds settle which GPU each member has, whether members that share a
// GPU can access each other's memory there, which NCCL version each has, and whether all are connected. Where members
// share a GPU, one of them leads there, and NCCL connects only the leaders.
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

// Combination of the settings of a set's members, which may differ. The set follows the combination, because members
// that followed their own settings could take different transports and wait for each other indefinitely.
struct GpuWishes {
  uint32_t nccl;           // nonzero: use NCCL or fail
  uint32_t ipc;            // nonzero: use CUDA IPC or fail
  uint32_t staged;         // nonzero: go through host memory, whatever other members ask for
  uint32_t not_nccl;       // nonzero: a member asks for a transport other than NCCL
  uint32_t deterministic;  // nonzero: bits of sums must not depend on the location of the ranks
  uint32_t unused;
  uint64_t staged_bytes;  // batches smaller than this go through host memory; value of the first member
  uint64_t slot_bytes;    // slot size in GPU memory; value of the first member
};

// Report of one member.
struct NcclPassport {
  CudaUuid uuid;
  int32_t wish;  // GpuTransport
  uint32_t deterministic;
  uint64_t staged_bytes, slot_bytes;
  int32_t version;  // version of its NCCL; 0 if it has none that it can use
  // Value of NCCL_HOSTID if the user has set it, else empty. NCCL then treats ranks with different ids as ranks with
  // different GPUs, even if they share one. Reported only by members whose settings require NCCL.
  std::array<char, 64> host_id;
  std::array<char, 256> why_not;
};
struct NcclVerdict {  // decision for all members, followed by the GPU number of each member
  uint32_t go_on;
  uint32_t sharing;  // nonzero if some members share a GPU
  int32_t version;   // NCCL version of all members
  uint32_t unused;
  GpuWishes wishes;
  uint64_t fused_bytes;
  NcclId id;
  std::array<char, 512> why_not;
};

// Combine the settings of all members: what one of them asks for applies to all.
GpuWishes WishesOf(const std::vector<NcclPassport>& all);
// Return true if some members share a GPU, as far as NCCL can tell.
bool ShareGpus(const std::vector<NcclPassport>& all);
// Return which members share a GPU. If all share a single GPU, treat them as separate, so that NCCL itself refuses.
GpuLayout LayoutOf(const std::vector<NcclPassport>& all);
// Return a text about the first member that asks for another transport than NCCL, or an empty text.
std::string AgainstTheirWishes(const std::vector<NcclPassport>& all, const std::vector<int>& ranks);
// Return the reason against NCCL that the first member finds in the reports of a round, or an empty text. `ranks` are
// the global ranks of the members, for the text.
std::string AgainstTheirGpus(const std::vector<NcclPassport>& all, const std::vector<int>& ranks);
std::string AgainstTheirLibraries(const std::vector<NcclPassport>& all, const std::vector<int>& ranks);
std::string AgainstTheirConnections(const std::vector<NcclPassport>& all, const std::vector<int>& ranks);

class NcclMeeting {
 public:
  struct Options {
    NcclPassport told{};  // the part of this member's report that consists of settings
    NcclFiles files;
    size_t fused_bytes = 0;  // see GoesThroughBuffer
    std::chrono::milliseconds longest_launch{0};
    // Return a lane between members that share a GPU, or null if they share no host memory.
    std::function<std::shared_ptr<Lane>(const std::vector<int>& members)> lane_on_gpu;
  };

  NcclMeeting(Devices* devices, Device* device, Lane* lane, std::vector<int> ranks, Options options);
  ~NcclMeeting();
  NcclMeeting(const NcclMeeting&) = delete;
  NcclMeeting& operator=(const NcclMeeting&) = delete;

  // Make progress. After kDone, either `serves` is true or `why_not` is the reason; the result is equal on all members.
  // The lane is in use until then.
  Machine::Step Advance();
  bool serves() const { return serves_; }
  const std::string& why_not() const { return why_not_; }
  // The next getters return results that hold for all members; valid after kDone.
  const GpuWishes& wishes() const { return verdict_.wishes; }
  bool forced() const { return verdict_.wishes.nccl != 0; }
  bool sharing() const { return verdict_.sharing != 0; }
  size_t fused_bytes() const { return static_cast<size_t>(verdict_.fused_bytes); }
  int version() const { return verdict_.version; }
  // Return the layout, valid if `serves` is true.
  const GpuLayout& layout() const { return layout_; }
  int me() const { return lane_->me(); }
  // Return the communicator, or null if another member leads on this GPU.
  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }
  const GpuMates* mates() const { return mates_.get(); }  // returns null if no members share a GPU

  // Release everything that waits for a member, because a member is lost.
  void LetGo() const;
  // Return the error that NCCL has reported asynchronously, or an empty text if there is none so far. Each call starts
  // a new query on the launcher thread.
  std::string Trouble();
  // Release all resources later, on the threads that own them.
  void LeaveLater(std::chrono::steady_clock::time_point until);
  // Release all resources now, after the launcher thread has ended. `whole` is true if no rank is lost.
  void Leave(bool whole, std::chrono::steady_clock::time_point until);

 private:
  enum class Round { kGpus, kMates, kLibraries, kConnections, kOver };
  struct Shared;  // data shared with the launcher thread

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
  std::vector<NcclPassport> passports_;  // reports that the first member has received
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
