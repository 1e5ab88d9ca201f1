// SPDX-License-Identifier: Apache-2.0
#include "core/process_set.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "core/gpu_settings.h"
#include "tuning/autotune.h"

namespace hvd {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kLeastPiece = 2048;  // with very many members, slots grow so that pieces do not get smaller
constexpr int kLanesInMemory = 4;     // two flat ones and two inside a host, or a device's lane instead of the third
// The lane between members that share a GPU carries little data and lies behind everything else in the region.
constexpr size_t kSlotOnGpu = 2 * DeviceLink::kPageBytes;
constexpr size_t kMoreAtOnce = 2;  // factor by which chunks grow between hosts and in large operations

size_t SlotBytes(const Settings& settings, int members) {
  return kMoreAtOnce * std::max(LargestChunk(settings), static_cast<size_t>(members) * kLeastPiece);
}

size_t LaneBytes(const Settings& settings, size_t slot_bytes) {
  LaneOptions options;
  options.slot_bytes = slot_bytes;
  options.slots = settings.slots;
  return (Lane::BytesNeeded(options) + kPage - 1) / kPage * kPage;
}

// Return the offset of the lane in a region.
size_t PlaceOfLaneOnGpu(const Settings& settings, size_t slot_bytes) {
  return kLanesInMemory * LaneBytes(settings, slot_bytes) + (ExpressMemory::kBytes + kPage - 1) / kPage * kPage;
}

}  // namespace

size_t ProcessSet::RegionBytes(const Settings& settings, int members) {
  return PlaceOfLaneOnGpu(settings, SlotBytes(settings, members)) + LaneBytes(settings, kSlotOnGpu);
}

ProcessSet::ProcessSet(int id, uint32_t epoch, std::vector<int> ranks, const std::vector<int64_t>& regions,
                       const Surroundings& around)
    : id_(id),
      epoch_(epoch),
      ranks_(std::move(ranks)),
      me_(IndexOf(around.rank)),
      region_(regions[me_]),
      slot_bytes_(SlotBytes(*around.settings, static_cast<int>(ranks_.size()))),
      foreign_(around.foreign),
      devices_(around.devices),
      around_(around),
      regions_(regions),
      launches_(around.launches),
      moves_by_host_(around.settings->hierarchical_allgather != 0),
      sums_by_host_(around.settings->hierarchical_allreduce != 0 && !around.settings->deterministic),
      sums_unevenly_(around.settings->hierarchical_allreduce == 1) {
  const std::vector<int> hosts = HostsOfMembers(*around.host_of_rank);
  const bool few = ranks_.size() <= kFewMembers;
  tree_ = few ? BuildStar(static_cast<int>(ranks_.size()), me_) : BuildTree(hosts, me_);
  std::vector<int> everybody(ranks_.size());
  for (size_t j = 0; j < everybody.size(); ++j) everybody[j] = static_cast<int>(j);
  flat_.there = BuildLane(everybody, 0, regions, around);
  flat_.back = BuildLane(everybody, 1, regions, around);
  if (!flat_.there->by_sockets()) FindArenas(regions, around);
  if (std::string_view(transport_) == "SHM") {
    arenas_ = reached_;
    device_lane_ = BuildLane(everybody, 2, regions, around);
    lanes_.pop_back();  // its chunk size is fixed and it uses no sockets
  }
  if (moves_by_host_ || sums_by_host_) BuildHierarchy(hosts, regions, around);
  const size_t different = std::set<int>(hosts.begin(), hosts.end()).size();
  host_layout_ = {static_cast<int>(different), apart() || inside()};
  close_knit_ = few && ranks_.size() > 1;
  if (close_knit_) relays_ = Relays(hosts, me_);
}

int ProcessSet::IndexOf(int rank) const {
  auto found = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
  return found != ranks_.end() && *found == rank ? static_cast<int>(found - ranks_.begin()) : -1;
}

std::vector<int> ProcessSet::HostsOfMembers(const std::vector<int>& host_of_rank) const {
  std::vector<int> hosts;
  for (int rank : ranks_) hosts.push_back(host_of_rank[rank]);
  return hosts;
}

void ProcessSet::BuildHierarchy(const std::vector<int>& hosts, const std::vector<int64_t>& regions,
                                const Surroundings& around) {
  std::map<int, std::vector<int>> members_of;  // members by host
  for (size_t j = 0; j < hosts.size(); ++j) members_of[hosts[j]].push_back(static_cast<int>(j));
  if (members_of.size() < 2 || members_of.size() == hosts.size()) return;
  const std::vector<int>& mine = members_of[hosts[me_]];
  size_t least = mine.size();
  for (const auto& [host, members] : members_of) {
    if (host == hosts[me_]) grid_.host = grid_.hosts();
    grid_.members.push_back(members);
    least = std::min(least, members.size());
  }
  grid_.columns = static_cast<int>(least);
  const size_t position = static_cast<size_t>(std::find(mine.begin(), mine.end(), me_) - mine.begin());
  grid_.position = static_cast<int>(position);
  inside_ = std::make_unique<Exchange>();
  inside_->there = BuildLane(mine, 2, regions, around);
  inside_->back = BuildLane(mine, 3, regions, around);
  grid_.inside = inside_.get();
  if (position >= least) return;
  // Ordered by host for every position, so that the order of sums does not depend on which member owns a share.
  std::vector<int> counterparts;
  for (const auto& members : grid_.members) counterparts.push_back(members[position]);
  across_ = std::make_unique<Exchange>();
  across_->there = BuildLane(counterparts, 4, regions, around);
  across_->back = BuildLane(counterparts, 5, regions, around);
  grid_.across = across_.get();
}

size_t ProcessSet::single_copy_bytes() const {
  uint64_t most = arenas_.empty() ? UINT64_MAX : 0;
  for (const std::byte* arena : arenas_) {
    const auto* head = reinterpret_cast<const ArenaHead*>(arena);
    most = std::max(most, head->single_copy_bytes.load(std::memory_order_acquire));
  }
  return static_cast<size_t>(most);
}

bool ProcessSet::brisk() const {
  return !arenas_.empty() && std::all_of(arenas_.begin(), arenas_.end(), [](const std::byte* arena) {
    return reinterpret_cast<const ArenaHead*>(arena)->brisk.load(std::memory_order_acquire);
  });
}

void ProcessSet::FindArenas(const std::vector<int64_t>& regions, const Surroundings& around) {
  const size_t lanes = kLanesInMemory * LaneBytes(*around.settings, slot_bytes_);
  own_arena_ = around.arena->shared_from_this();
  reached_.resize(ranks_.size(), nullptr);
  express_heads_.resize(ranks_.size(), nullptr);
  for (size_t j = 0; j < ranks_.size(); ++j) {
    const bool ours = static_cast<int>(j) == me_;
    if (!ours && !flat_.there->in_memory(static_cast<int>(j))) continue;
    reached_[j] = ours ? around.arena->at(0) : around.neighbours->Find(ranks_[j])->arena->at(0);
    express_heads_[j] = reinterpret_cast<ExpressHead*>(reached_[j] + static_cast<size_t>(regions[j]) + lanes);
  }
}

std::unique_ptr<Lane> ProcessSet::BuildLane(const std::vector<int>& members, int number,
                                            const std::vector<int64_t>& regions, const Surroundings& around) {
  LaneOptions options;
  options.members = static_cast<int>(members.size());
  options.slot_bytes = slot_bytes_;
  options.slots = around.settings->slots;
  options.streams = around.settings->tcp_streams;
  std::set<int> hosts;
  for (int member : members) hosts.insert((*around.host_of_rank)[ranks_[member]]);
  options.apart = members.size() > 1 && hosts.size() == members.size();
  const size_t offset = static_cast<size_t>(number) * LaneBytes(*around.settings, slot_bytes_);
  const bool in_memory = number < kLanesInMemory && around.arena && region_ >= 0;
  std::vector<LaneHead*> heads(members.size(), nullptr);
  std::vector<StreamKey> keys(members.size());
  std::vector<int> ranks(members.size());
  bool shared = false;
  for (size_t i = 0; i < members.size(); ++i) {
    const int member = members[i], rank = ranks_[member];
    ranks[i] = rank;
    keys[i] = {rank, static_cast<uint32_t>(id_) + 1, epoch_, static_cast<uint16_t>(number), 0};
    if (member == me_) {
      options.me = static_cast<int>(i);
      continue;
    }
    Neighbour* neighbour = around.neighbours->Find(rank);
    if (!in_memory || !neighbour || !neighbour->arena || regions[member] < 0) continue;
    heads[i] = reinterpret_cast<LaneHead*>(neighbour->arena->at(static_cast<size_t>(regions[member]) + offset));
    shared = true;
  }
  const bool remote = std::count(heads.begin(), heads.end(), nullptr) > 1;  // our own head is one of them
  if (number == 0 && members.size() > 1) transport_ = !remote ? "SHM" : shared ? "SHM_TCP" : "TCP";
  if (shared) {
    heads[options.me] = reinterpret_cast<LaneHead*>(around.arena->at(static_cast<size_t>(region_) + offset));
  }
  auto lane = std::make_unique<Lane>(options, std::move(heads), std::move(keys), around.connector, around.changed);
  lanes_.emplace_back(lane.get(), std::move(ranks));
  return lane;
}

// Return a lane between members that share a GPU, or null if they do not reach each other's memory. A single member
// needs no shared memory.
std::shared_ptr<Lane> ProcessSet::BuildLaneOnGpu(const std::vector<int>& members) const {
  LaneOptions options;
  options.members = static_cast<int>(members.size());
  options.slot_bytes = kSlotOnGpu;
  options.slots = around_.settings->slots;
  const size_t offset = PlaceOfLaneOnGpu(*around_.settings, slot_bytes_);
  std::vector<LaneHead*> heads(members.size(), nullptr);
  for (size_t i = 0; i < members.size(); ++i) {
    const int member = members[i];
    if (member == me_) options.me = static_cast<int>(i);
    if (members.size() == 1) break;
    const Neighbour* const neighbour = around_.neighbours->Find(ranks_[static_cast<size_t>(member)]);
    const Arena* const arena = member == me_ ? around_.arena : neighbour ? neighbour->arena.get() : nullptr;
    const int64_t region = regions_[static_cast<size_t>(member)];
    if (!arena || region < 0) return nullptr;
    heads[i] = reinterpret_cast<LaneHead*>(arena->at(static_cast<size_t>(region) + offset));
  }
  return std::make_shared<Lane>(options, std::move(heads), std::vector<StreamKey>(members.size()), around_.connector,
                                around_.changed);
}

void ProcessSet::UseChunks(size_t bytes, bool large) {
  const size_t usual = std::min(std::max(bytes, ranks_.size() * kLeastPiece), slot_bytes_ / kMoreAtOnce);
  for (auto& [lane, ranks] : lanes_) lane->set_chunk_bytes(large || lane->apart() ? kMoreAtOnce * usual : usual);
}

bool ProcessSet::Pump() {
  if (all_in_memory()) return false;
  bool moved = false;
  for (auto& [lane, ranks] : lanes_) moved |= lane->Pump();
  return moved;
}

bool ProcessSet::AllSent() const {
  return all_in_memory() ||
         std::all_of(lanes_.begin(), lanes_.end(), [](const auto& item) { return item.first->Idle(); });
}

void ProcessSet::LookForAnswers(std::chrono::steady_clock::time_point now, std::chrono::milliseconds limit) {
  if (all_in_memory()) return;
  for (auto& [lane, ranks] : lanes_) lane->LookForAnswers(now, limit);
}

std::pair<int, std::string> ProcessSet::Broken() const {
  if (all_in_memory()) return {-1, ""};
  for (const auto& [lane, ranks] : lanes_) {
    if (!lane->status().ok()) return {ranks[lane->lost_member()], lane->status().text};
  }
  return {-1, ""};
}

void ProcessSet::DropUnsent() {
  for (auto& [lane, ranks] : lanes_) lane->DropUnsent();
}

void ProcessSet::CloseDescriptors() {
  for (auto& [lane, ranks] : lanes_) lane->CloseDescriptors();
}

Device* ProcessSet::DeviceWithout(int agreed) {
  Device*& device = device_of_[agreed];
  if (!device && joined_on_ >= 0) device = devices_->Use(joined_on_);
  if (!device) device = devices_->last_used();
  if (!device) device = devices_->UseIfThere(agreed);
  return device;
}

void ProcessSet::MeetOn(Device* device, int agreed, size_t slot_bytes) {
  if (meeting_) return;
  met_on_ = agreed;
  meeting_ = std::make_unique<DeviceMeeting>(devices_, device, device_lane_.get(), slot_bytes);
}

void ProcessSet::MeetAboutRegions() {
  if (region_meeting_) return;
  Device* const device = &meeting_->link()->device();
  region_meeting_ = std::make_shared<RegionMeeting>(devices_, device, flat_.there.get());
  devices_->regions().Share(id_, device);
}

void ProcessSet::MeetOverNccl(Device* device, int agreed, const Settings& settings) {
  if (nccl_) return;
  nccl_on_ = agreed;
  NcclMeeting::Options options{PassportWith(settings),
                               {settings.nccl_library, settings.nccl_bundled},
                               static_cast<size_t>(settings.nccl_fused_bytes),
                               LongestLaunch(settings),
                               [this](const std::vector<int>& members) { return BuildLaneOnGpu(members); }};
  nccl_ = std::make_unique<NcclMeeting>(devices_, device, flat_.there.get(), ranks_, std::move(options));
}

void ProcessSet::LeaveDevice(bool whole, std::chrono::steady_clock::time_point until) {
  if (meeting_) meeting_->AwaitOthers(whole ? until : std::chrono::steady_clock::now());
  region_meeting_.reset();
  meeting_.reset();
  if (nccl_) nccl_->Leave(whole, until);
  nccl_.reset();
}

void ProcessSet::LeaveDeviceLater(std::chrono::steady_clock::time_point until) {
  if (nccl_) nccl_->LeaveLater(until);
  nccl_.reset();
  if (!meeting_) return;
  devices_->regions().Unshare(id_);
  std::shared_ptr<DeviceLink> link = meeting_->link();
  meeting_.reset();
  if (!link) return;
  // Other members may still read this memory. The driver keeps mapped memory until they unmap it.
  devices_->worker().Put([link = std::move(link), regions = std::move(region_meeting_), until]() mutable {
    link->device().AwaitIdle(until);
    regions.reset();
    link.reset();
  });
}

}  // namespace hvd
