// SPDX-License-Identifier: Apache-2.0
// The members of a set find out whether NCCL serves them, when the first of their tensors on GPUs comes. They tell
// their first member, which decides for all: who has which GPU, then who has which NCCL, then whether all are
// connected.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/machine.h"
#include "devices/communicator.h"
#include "devices/devices.h"

namespace hvd {

// What a member tells, and what it hears.
struct NcclPassport {
  CudaUuid uuid;
  int32_t wish;     // GpuTransport
  int32_t version;  // of its NCCL; 0: it has none that it can use
  std::array<char, 256> why_not;
};
struct NcclVerdict {
  uint32_t go_on;
  uint32_t forced;  // somebody wants NCCL or nothing
  uint64_t buffer_bytes;
  NcclId id;
  std::array<char, 512> why_not;
};

// What the first member makes of what all tell, by member; `ranks`: their names. Empty: nothing speaks against it.
std::string AgainstTheirGpus(const std::vector<NcclPassport>& all, const std::vector<int>& ranks);
std::string AgainstTheirLibraries(const std::vector<NcclPassport>& all, const std::vector<int>& ranks);
std::string AgainstTheirConnections(const std::vector<NcclPassport>& all, const std::vector<int>& ranks);

class NcclMeeting {
 public:
  struct Options {
    int32_t wish = kGpuAuto;
    NcclFiles files;
    size_t buffer_bytes = 0;
  };

  NcclMeeting(Devices* devices, Device* device, Lane* lane, std::vector<int> ranks, Options options);
  ~NcclMeeting();
  NcclMeeting(const NcclMeeting&) = delete;
  NcclMeeting& operator=(const NcclMeeting&) = delete;

  // kDone: `communicator` is there, or `why_not` says why there is none. All members come to the same. Until then the
  // lane is the meeting's.
  Machine::Step Advance();
  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }
  const std::string& why_not() const { return why_not_; }
  bool forced() const { return forced_; }
  int version() const;  // with the communicator

  // What NCCL has found wrong since it was last asked, on the launcher: asks again. Empty: nothing so far.
  std::string Trouble();
  // Gives up what is left, on a thread for that.
  void LeaveLater(std::chrono::steady_clock::time_point until);
  // The same here, after the launcher has ended. `whole`: nobody is lost.
  void Leave(bool whole, std::chrono::steady_clock::time_point until);

 private:
  enum class Round { kGpus, kLibraries, kConnections, kOver };
  struct Shared;  // with the launcher

  bool Prepares();
  void PutJob();
  bool Tells();
  bool Decides();
  bool Hears();
  void Judge();
  void Conclude(const NcclVerdict& verdict);
  NcclPassport Own() const;

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
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<DeviceWorker::Job> job_, look_;
  std::chrono::steady_clock::time_point connect_until_{};
  std::shared_ptr<Communicator> communicator_;
  std::string why_not_;
  bool forced_ = false;
};

}  // namespace hvd
