// SPDX-License-Identifier: Apache-2.0
// A group of ranks that runs collectives of its own: who they are, and how their bytes travel. Used by the driver
// alone.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agreement/algorithms.h"
#include "agreement/control.h"
#include "agreement/launch_order.h"
#include "agreement/relays.h"
#include "agreement/tree.h"
#include "base/config.h"
#include "collectives/foreign.h"
#include "collectives/host_grid.h"
#include "collectives/machine.h"
#include "collectives/nccl_meeting.h"
#include "collectives/on_device.h"
#include "collectives/region_meeting.h"
#include "memory/express_memory.h"
#include "transport/neighbours.h"

namespace hvd {

// What a set needs of its surroundings to build its lanes.
struct Surroundings {
  const Settings* settings;
  int rank;
  const std::vector<int>* host_of_rank;
  Arena* arena;  // null: no shared memory
  Neighbours* neighbours;
  Connector* connector;
  std::function<void()> changed;   // wakes the neighbours
  ForeignJobs* foreign = nullptr;  // another library moves what it can; null: none
  Devices* devices = nullptr;
  LaunchOrder* launches = nullptr;
};

constexpr int kGlobalSet = 0;  // the set of all ranks

class ProcessSet {
 public:
  // Shared memory that each member reserves in its arena for a set of `members`.
  static size_t RegionBytes(const Settings& settings, int members);

  // regions[j]: offset of member j's region in its arena, -1 if it has none.
  ProcessSet(int id, uint32_t epoch, std::vector<int> ranks, const std::vector<int64_t>& regions,
             const Surroundings& around);

  int id() const { return id_; }
  uint32_t epoch() const { return epoch_; }
  control::SetTag tag() const { return {id_, epoch_}; }
  const std::vector<int>& ranks() const { return ranks_; }
  int me() const { return me_; }  // member index
  int IndexOf(int rank) const;
  int64_t region() const { return region_; }
  const Tree& tree() const { return tree_; }
  const Relays& relays() const { return relays_; }
  bool leads() const { return me_ == 0; }
  const char* transport() const { return transport_; }  // "SHM", "TCP", "SHM_TCP", or "LOCAL" without any peer

  // Whether every member reaches the memory of every other; then, their arenas.
  bool all_in_memory() const { return !arenas_.empty(); }
  const std::vector<std::byte*>& arenas() const { return arenas_; }
  // Where the arena of a member lies here; null if we do not reach it.
  std::byte* arena_of(int member) const { return reached_.empty() ? nullptr : reached_[static_cast<size_t>(member)]; }
  // Outputs from this size on may be written by all members; the same number on all of them once they have agreed on
  // anything. SIZE_MAX: none.
  size_t single_copy_bytes() const;
  // Whether a meeting of all members takes next to no time; likewise.
  bool brisk() const;
  std::shared_ptr<Arena> own_arena() const { return own_arena_; }
  // By member, null for those whose memory we do not reach; empty if those are all. See express_memory.h.
  const std::vector<ExpressHead*>& express_heads() const { return express_heads_; }
  // Few members, on whatever hosts: everybody has a way to everybody else, and the leader one of its own to each.
  bool close_knit() const { return close_knit_; }

  ForeignJobs* foreign() const { return foreign_; }  // may be null
  Devices* devices() const { return devices_; }
  // Where this member has tensors that the members know to lie on a device of theirs. `agreed`: by which number.
  void UseDevice(int agreed, Device* device) { device_of_[agreed] = device; }
  // The device on which it takes part without tensors, since it has joined: the same, so that what members have met on
  // serves it; if it never had any there, the one on which it said that it joins, or that it used last, or the one of
  // that number. Throws DeviceError.
  Device* DeviceWithout(int agreed);
  void JoinOn(int ordinal) { joined_on_ = ordinal; }
  // How the members reach each other's memory on a device, from the first MeetOn on.
  void MeetOn(Device* device, int agreed, size_t slot_bytes);
  bool MayMeetOn(int agreed) const { return !meeting_ || met_on_ == agreed; }
  DeviceMeeting* meeting() const { return meeting_.get(); }
  // Regions there that have tensors of members, since all of them share one device.
  void MeetAboutRegions();
  RegionMeeting* regions() const { return region_meeting_.get(); }
  // Whether NCCL serves them, likewise.
  void MeetOverNccl(Device* device, int agreed, const Settings& settings);
  bool IsNcclOn(int agreed) const { return nccl_ && nccl_->serves() && nccl_on_ == agreed; }
  NcclMeeting* nccl() const { return nccl_.get(); }
  LaunchOrder* launches() const { return launches_; }
  // A member is lost: no stream waits for one any longer.
  void LetGoOfDevice() const {
    if (meeting_ && meeting_->slots()) meeting_->slots()->LetGo();
    if (nccl_) nccl_->LetGo();
  }
  Lane* device_lane() const { return device_lane_.get(); }  // if all members are in memory, else null
  // After the set's last operation, with nobody driving the engine; or, later, on a thread for that. `whole`: no member
  // is lost.
  void LeaveDevice(bool whole, std::chrono::steady_clock::time_point until);
  void LeaveDeviceLater(std::chrono::steady_clock::time_point until);
  Exchange& flat() { return flat_; }
  // Several members, each on a host of its own.
  bool apart() const { return flat_.there->apart(); }
  const HostLayout& host_layout() const { return host_layout_; }
  // Null unless the set spans several hosts, one of them with more than one member, and settings allow it: for what
  // moves bytes, and for what sums, where the order of additions follows from it. Over hosts with different numbers of
  // members sums are taken in rank order, as allreduce takes them, unless settings insist.
  const HostGrid* grid_for_moves() const { return inside_ && moves_by_host_ ? &grid_ : nullptr; }
  const HostGrid* grid_for_sums() const {
    return inside_ && sums_by_host_ && (grid_.Even() || sums_unevenly_) ? &grid_ : nullptr;
  }
  // Sums if there is the same number of members on every host; else null, all three.
  Exchange* inside() { return members_by_host() ? inside_.get() : nullptr; }
  Exchange* across() { return members_by_host() ? across_.get() : nullptr; }
  const std::vector<std::vector<int>>* members_by_host() const {
    return inside_ && sums_by_host_ && grid_.Even() ? &grid_.members : nullptr;
  }
  // From here on the lanes carry chunks of this size, or of what comes nearest to it. Only between two machines.
  // `large`: an operation that no cache holds, so that fewer meetings gain more than smaller chunks.
  void UseChunks(size_t bytes, bool large);
  bool Pump();
  bool AllSent() const;
  void DropUnsent();
  void LookForAnswers(std::chrono::steady_clock::time_point now, std::chrono::milliseconds limit);
  // The first broken lane: {global rank, why} or {-1, ""}.
  std::pair<int, std::string> Broken() const;
  void CloseDescriptors();

 private:
  std::vector<int> HostsOfMembers(const std::vector<int>& host_of_rank) const;
  void BuildHierarchy(const std::vector<int>& hosts, const std::vector<int64_t>& regions, const Surroundings& around);
  void FindArenas(const std::vector<int64_t>& regions, const Surroundings& around);
  std::unique_ptr<Lane> BuildLane(const std::vector<int>& members, int number, const std::vector<int64_t>& regions,
                                  const Surroundings& around);
  std::shared_ptr<Lane> BuildLaneOnGpu(const std::vector<int>& members) const;

  int id_;
  uint32_t epoch_;
  std::vector<int> ranks_;
  int me_;
  int64_t region_;
  size_t slot_bytes_;
  const char* transport_ = "LOCAL";
  std::vector<std::byte*> reached_;  // by member, null for those that are not; empty if none is
  std::vector<std::byte*> arenas_;   // the same; empty if one is not reached
  std::shared_ptr<Arena> own_arena_;
  std::vector<ExpressHead*> express_heads_;
  bool close_knit_ = false;
  ForeignJobs* foreign_;
  Devices* devices_;
  const Surroundings around_;  // for lanes that are made later
  const std::vector<int64_t> regions_;
  std::map<int, Device*> device_of_;  // by the number that is agreed
  int joined_on_ = -1;
  int met_on_ = -1;
  std::unique_ptr<Lane> device_lane_;
  std::unique_ptr<DeviceMeeting> meeting_;
  std::shared_ptr<RegionMeeting> region_meeting_;
  LaunchOrder* launches_;
  std::unique_ptr<NcclMeeting> nccl_;
  int nccl_on_ = -1;  // likewise
  HostLayout host_layout_;
  Tree tree_;
  Relays relays_;
  Exchange flat_;
  bool moves_by_host_, sums_by_host_, sums_unevenly_;
  std::unique_ptr<Exchange> inside_, across_;
  HostGrid grid_;
  std::vector<std::pair<Lane*, std::vector<int>>> lanes_;  // with the global rank of each lane member
};

}  // namespace hvd
