// SPDX-License-Identifier: Apache-2.0
// A group of ranks that runs its own collectives: its members and the lanes between them. Only the thread that drives
// the engine uses it.
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

// What a process set needs from the engine to build its lanes.
struct Surroundings {
  const Settings* settings;
  int rank;
  const std::vector<int>* host_of_rank;
  Arena* arena;  // null: no shared memory
  Neighbours* neighbours;
  Connector* connector;
  std::function<void()> changed;   // wakes the local peers
  ForeignJobs* foreign = nullptr;  // external library that moves data where it can; null: none
  Devices* devices = nullptr;
  LaunchOrder* launches = nullptr;
};

constexpr int kGlobalSet = 0;  // the set of all ranks

class ProcessSet {
 public:
  // Return the bytes of shared memory that each member reserves in its arena for a set of `members`.
  static size_t RegionBytes(const Settings& settings, int members);

  // regions[j] is the offset of member j's region in its arena, or -1 if it has none.
  ProcessSet(int id, uint32_t epoch, std::vector<int> ranks, const std::vector<int64_t>& regions,
             const Surroundings& around);

  int id() const { return id_; }
  uint32_t epoch() const { return epoch_; }
  control::SetTag tag() const { return {id_, epoch_}; }
  const std::vector<int>& ranks() const { return ranks_; }
  int me() const { return me_; }  // member index of this rank
  int IndexOf(int rank) const;
  int64_t region() const { return region_; }
  const Tree& tree() const { return tree_; }
  const Relays& relays() const { return relays_; }
  bool leads() const { return me_ == 0; }
  const char* transport() const { return transport_; }  // "SHM", "TCP", "SHM_TCP", or "LOCAL" for a single member

  // True if every member can access the memory of every other. Only then arenas() is not empty.
  bool all_in_memory() const { return !arenas_.empty(); }
  const std::vector<std::byte*>& arenas() const { return arenas_; }
  // Return the address of a member's arena in this process, or null if it is not mapped.
  std::byte* arena_of(int member) const { return reached_.empty() ? nullptr : reached_[static_cast<size_t>(member)]; }
  // Return the size from which outputs may be written by all members; SIZE_MAX: none may. After the first agreed
  // operation the value is equal on all members.
  size_t single_copy_bytes() const;
  // Return true if each member has a core of its own and reaches all memory, so that a synchronization is fast. After
  // the first agreed operation the answer is equal on all members.
  bool brisk() const;
  std::shared_ptr<Arena> own_arena() const { return own_arena_; }
  // Memory for the fast path, by member; null for members whose memory we do not reach, empty if we reach none. See
  // express_memory.h.
  const std::vector<ExpressHead*>& express_heads() const { return express_heads_; }
  // True if the set has few members. All members are then connected to each other, and the leader to each directly.
  bool close_knit() const { return close_knit_; }

  ForeignJobs* foreign() const { return foreign_; }  // may be null
  Devices* devices() const { return devices_; }
  // Record the device of this member's tensors under the number `agreed` that all members use for it.
  void UseDevice(int agreed, Device* device) { device_of_[agreed] = device; }
  // Return the device on which a joined rank takes part without tensors. It is the device that it has used under this
  // number, so that the negotiated setup still applies; else the device that it named when it joined, or used last, or
  // the device of that number. Throws DeviceError.
  Device* DeviceWithout(int agreed);
  void JoinOn(int ordinal) { joined_on_ = ordinal; }
  // Start the setup through which the members reach each other's memory on a device, unless it was started before.
  void MeetOn(Device* device, int agreed, size_t slot_bytes);
  bool MayMeetOn(int agreed) const { return !meeting_ || met_on_ == agreed; }
  DeviceMeeting* meeting() const { return meeting_.get(); }
  // Start mapping memory regions that hold members' tensors, unless it was started before. All members must share one
  // device.
  void MeetAboutRegions();
  RegionMeeting* regions() const { return region_meeting_.get(); }
  // Start the negotiation of whether NCCL serves the members, unless it was started before.
  void MeetOverNccl(Device* device, int agreed, const Settings& settings);
  bool IsNcclOn(int agreed) const { return nccl_ && nccl_->serves() && nccl_on_ == agreed; }
  NcclMeeting* nccl() const { return nccl_.get(); }
  LaunchOrder* launches() const { return launches_; }
  // Release all streams that wait for other members, because a member is lost.
  void LetGoOfDevice() const {
    if (meeting_ && meeting_->slots()) meeting_->slots()->LetGo();
    if (nccl_) nccl_->LetGo();
  }
  Lane* device_lane() const { return device_lane_.get(); }  // null unless all members are in shared memory
  // Free memory on devices after the set's last operation, when no thread drives the engine; LeaveDeviceLater does so
  // on a worker thread. `whole`: no member is lost.
  void LeaveDevice(bool whole, std::chrono::steady_clock::time_point until);
  void LeaveDeviceLater(std::chrono::steady_clock::time_point until);
  Exchange& flat() { return flat_; }
  // True if the set has several members, each on a host of its own.
  bool apart() const { return flat_.there->apart(); }
  const HostLayout& host_layout() const { return host_layout_; }
  // Grid of hosts for operations that move bytes, or that sum, where it determines the order of additions. Null unless
  // the set spans several hosts, one of which has more than one member, and the settings allow it. If hosts have
  // different numbers of members, sums are taken in rank order as in allreduce, unless the settings require the
  // hierarchy.
  const HostGrid* grid_for_moves() const { return inside_ && moves_by_host_ ? &grid_ : nullptr; }
  const HostGrid* grid_for_sums() const {
    return inside_ && sums_by_host_ && (grid_.Even() || sums_unevenly_) ? &grid_ : nullptr;
  }
  // Lanes and members for hierarchical sums; null unless each host has the same number of members.
  Exchange* inside() { return members_by_host() ? inside_.get() : nullptr; }
  Exchange* across() { return members_by_host() ? across_.get() : nullptr; }
  const std::vector<std::vector<int>>* members_by_host() const {
    return inside_ && sums_by_host_ && grid_.Even() ? &grid_.members : nullptr;
  }
  // Set the chunk size of the lanes, as far as their slots allow. `large`: the operation exceeds all caches, so fewer
  // synchronizations gain more than smaller chunks. Call only between two machines (collectives).
  void UseChunks(size_t bytes, bool large);
  bool Pump();
  bool AllSent() const;
  void DropUnsent();
  void LookForAnswers(std::chrono::steady_clock::time_point now, std::chrono::milliseconds limit);
  // Return {global rank, reason} of the first broken lane, or {-1, ""}.
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
  std::vector<std::byte*> reached_;  // arenas by member, null if not mapped; empty if none is
  std::vector<std::byte*> arenas_;   // all arenas by member; empty if one is not mapped
  std::shared_ptr<Arena> own_arena_;
  std::vector<ExpressHead*> express_heads_;
  bool close_knit_ = false;
  ForeignJobs* foreign_;
  Devices* devices_;
  const Surroundings around_;  // for lanes that are built later
  const std::vector<int64_t> regions_;
  std::map<int, Device*> device_of_;  // this member's devices by the number that all members use
  int joined_on_ = -1;
  int met_on_ = -1;
  std::unique_ptr<Lane> device_lane_;
  std::unique_ptr<DeviceMeeting> meeting_;
  std::shared_ptr<RegionMeeting> region_meeting_;
  LaunchOrder* launches_;
  std::unique_ptr<NcclMeeting> nccl_;
  int nccl_on_ = -1;  // the agreed number of the device of `nccl_`
  HostLayout host_layout_;
  Tree tree_;
  Relays relays_;
  Exchange flat_;
  bool moves_by_host_, sums_by_host_, sums_unevenly_;
  std::unique_ptr<Exchange> inside_, across_;
  HostGrid grid_;
  std::vector<std::pair<Lane*, std::vector<int>>> lanes_;  // each lane with the global ranks of its members
};

}  // namespace hvd
