// SPDX-License-Identifier: Apache-2.0
#include "core/world.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "base/cores.h"
#include "core/nccl_execution.h"
#include "core/shown.h"

namespace hvd {
namespace {

using Clock = std::chrono::steady_clock;

// Worlds alive in this process, for children of a fork. Leaked on purpose, because it must outlive static destructors.
struct Registry {
  std::mutex mutex;
  std::set<World*> worlds;
};
Registry& AllWorlds() {
  static Registry* registry = new Registry;
  return *registry;
}

constexpr auto kFarewell = std::chrono::seconds(1);
// Launched work finishes when all ranks have launched it. Lost ranks never do, so the wait is limited.
constexpr auto kLongestDrain = std::chrono::seconds(60);
constexpr auto kLeaveDevices = std::chrono::seconds(2);
constexpr uint64_t kCrowded = 64;

// Return true if some ranks share a core, because spinning helps only if each rank has its own. Hosts may be containers
// of one machine and share its cores.
bool SharesCores(const Identity& me, const std::vector<Peer>& peers) {
  const std::string& machine = peers[me.rank].machine;
  int on_host = 0, on_machine = 0;
  for (const Peer& peer : peers) {
    on_host += peer.host == me.host;
    on_machine += peer.host == me.host || (!machine.empty() && peer.machine == machine);
  }
  cpu_set_t set;
  const int allowed = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  const int cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  // If this rank is bound to a single core, that core is its own, and the machine's number of cores counts for all
  // ranks.
  return allowed == 1 || allowed >= cores ? on_machine > cores : on_host > allowed;
}

}  // namespace

World::World(const Identity& identity, const Settings& settings)
    : identity_(identity), settings_(settings), log_(identity, settings) {
  credentials_ = {identity.rank, identity.world_id, identity.generation, identity.secret};
  devices_ = std::make_unique<Devices>([this] { poller_.bell().Force(); });
  if (settings.launches_by_calls) devices_->LaunchByCalls();
  submissions_.TakeTicketsOf(devices_->calls(), devices_->prompt_calls());
  timeline_ = std::make_unique<Timeline>(identity.rank, Timeline::kCapacity, log_);
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { InForkedChild(); }); });
  std::lock_guard<std::mutex> lock(AllWorlds().mutex);
  AllWorlds().worlds.insert(this);
}

std::unique_ptr<World> World::Open(const Identity& identity, const Settings& settings, Status* status) {
  if (settings.engine_core >= 0) {
    *status = CheckCore(settings.engine_core);
    if (!status->ok()) return nullptr;
  }
  std::unique_ptr<World> world(new World(identity, settings));
  if (!world->poller_.ok()) {
    *status = Status::Failed("cannot open an epoll set or an eventfd: is the limit on open files (ulimit -n) reached?");
    return nullptr;
  }
  Connector::Watcher watcher{[poller = &world->poller_](int fd) { poller->Add(fd); },
                             [poller = &world->poller_](int fd) { poller->Remove(fd); }};
  world->connector_ = Connector::Listen(world->credentials_, identity.listen_address, watcher, status);
  if (!world->connector_) return nullptr;
  world->timeline_->CountBytesOf(&world->connector_->traffic);
  world->connector_->limits.unanswered = std::chrono::milliseconds(settings.peer_timeout_ms);
  world->neighbours_ = std::make_unique<Neighbours>(world->credentials_, identity.host);
  return world;
}

World::~World() {
  Close();
  std::lock_guard<std::mutex> lock(AllWorlds().mutex);
  AllWorlds().worlds.erase(this);
}

Status World::CreateArena(const std::vector<Peer>& peers) {
  const auto same_host = [this](const Peer& peer) { return peer.host == identity_.host; };
  if (!settings_.shared_memory || std::count_if(peers.begin(), peers.end(), same_host) < 2) return Status::Ok();
  Status status;
  arena_ = Arena::Create(&status);
  if (!arena_) return status;
  if (arena_->Reserve(sizeof(ArenaHead), &status) != 0) {
    arena_.reset();
    return status;
  }
  ArenaHead* head = new (arena_->at(0)) ArenaHead;
  head->rank = static_cast<uint32_t>(identity_.rank);
  head->generation = identity_.generation;
  head->asleep.store(0);
  head->pulse.store(0);
  head->single_copy_bytes.store(UINT64_MAX);
  head->brisk.store(0);
  head->inbox.Initialise();
  head->world_region = arena_->Reserve(ProcessSet::RegionBytes(settings_, identity_.size), &status);
  head->magic = ArenaHead::kMagic;
  poller_.set_asleep_flag(&head->asleep);
  return status;
}

void World::UseForeignJobs() {
  foreign_ = std::make_unique<ForeignJobs>([this] { poller_.bell().Force(); });
}

void World::UseTuning(const Tuning& tuning) {
  settings_.fusion_threshold = tuning.fusion_threshold;
  settings_.cycle_time_us = tuning.cycle_time_us;
  settings_.slot_bytes = tuning.chunk_bytes;
  settings_.autotune = 0;
}

Status World::Connect(const std::vector<Peer>& peers, double timeout_s) {
  if (stage_ != Stage::kOpen) return Status::Invalid("this world has been connected before");
  if (static_cast<int>(peers.size()) != identity_.size) return Status::Invalid("one peer for each rank is needed");
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s));
  // Without shared memory everything works through sockets; Describe and a warning show this to the user.
  const Status no_arena = CreateArena(peers);
  std::map<std::string, int> host_numbers;
  std::vector<int> host_of_rank;
  std::vector<std::string> host_names;
  std::vector<std::pair<std::string, int>> addresses;
  std::vector<Neighbours::Invitation> invitations;
  for (const Peer& peer : peers) {
    host_of_rank.push_back(host_numbers.emplace(peer.host, static_cast<int>(host_numbers.size())).first->second);
    host_names.push_back(peer.host);
    addresses.emplace_back(peer.address, peer.port);
    if (peer.rank != identity_.rank && peer.host == identity_.host)
      invitations.push_back({peer.rank, peer.local_socket});
  }
  one_host_ = host_numbers.size() == 1;
  if (SharesCores(identity_, peers)) settings_.spin_us = 0;
  connector_->SetPeers(std::move(addresses));
  const std::chrono::milliseconds silence(settings_.peer_timeout_ms);
  const Status met = neighbours_->Meet(invitations, {arena_.get(), &poller_, connector_.get(), deadline, silence});
  if (met.ok() && settings_.shared_memory) WarnOfSockets(no_arena);
  if (met.ok()) TellWhatIsPossible();
  for (const Neighbour& neighbour : neighbours_->all()) poller_.Add(neighbour.life_line.fd());
  engine_ = std::make_unique<Engine>(Engine::Parts{identity_, settings_, std::move(host_of_rank), std::move(host_names),
                                                   arena_.get(), neighbours_.get(), connector_.get(), &poller_,
                                                   &submissions_, &callers_, timeline_.get(), stack_teller_,
                                                   block_teller_, log_, foreign_.get(), devices_.get()});
  if (!met.ok()) return FailToConnect(met);
  driver_ = std::make_unique<Driver>(engine_.get(), &submissions_, &poller_, settings_);
  driver_->Start();
  stage_ = Stage::kConnected;
  TellOfMeeting(host_numbers.size());
  return Status::Ok();
}

// End a world that could not be connected. Report the lost rank to the ranks that are connected before we leave.
Status World::FailToConnect(const Status& why) {
  if (why.lost_rank >= 0) {
    engine_->Abort(why.lost_rank, why.text);
  } else {
    engine_->AbortHere(why.text);
  }
  SayFarewell(false);
  engine_->CloseDescriptors();
  stage_ = Stage::kClosed;
  return why;
}

void World::SayFarewell(bool at_once) {
  engine_->Leave(at_once);
  const auto until = Clock::now() + kFarewell;
  while (!engine_->AllSent() && Clock::now() < until) {
    if (!engine_->Progress(false, true)) poller_.Sleep(Clock::now() + std::chrono::milliseconds(1));
  }
}

// Publish what this rank can do in its arena. All members read the values of all members, so that they choose the same
// algorithm for a collective.
void World::TellWhatIsPossible() {
  const std::vector<Neighbour>& others = neighbours_->all();
  const auto reached = [](const Neighbour& neighbour) { return neighbour.arena != nullptr; };
  if (!arena_ || !std::all_of(others.begin(), others.end(), reached)) return;
  auto* head = reinterpret_cast<ArenaHead*>(arena_->at(0));
  head->brisk.store(settings_.spin_us > 0);
  // Where ranks share cores, a synchronization needs a context switch, so the gain must be larger.
  const uint64_t least = std::min<uint64_t>(settings_.single_copy_bytes, Arena::kExtent) *  // outputs are never larger
                         (settings_.spin_us > 0 ? 1 : kCrowded);
  if (least > 0) head->single_copy_bytes.store(least);
}

// Warn once per host, on its first rank, about ranks without shared memory.
void World::WarnOfSockets(const Status& no_arena) const {
  int without = 0;
  for (const Neighbour& neighbour : neighbours_->all()) {
    if (neighbour.rank < identity_.rank) return;
    without += neighbour.arena == nullptr;
  }
  if (without == 0) return;
  const std::string why = no_arena.ok() ? "it could not be handed over between them" : no_arena.text;
  log_.Warn(std::to_string(without) + " of the other ranks on host '" + identity_.host +
            "' share no memory with rank " + std::to_string(identity_.rank) + " (" + why +
            "). They use sockets instead, which is slower; `hvd doctor` says what to change.");
}

void World::TellOfMeeting(size_t hosts) const {
  log_.Info([&] {
    const std::vector<Neighbour>& others = neighbours_->all();
    const auto by_memory =
        std::count_if(others.begin(), others.end(), [](const Neighbour& it) { return it.arena != nullptr; });
    return "joined as rank " + std::to_string(identity_.rank) + " of " + std::to_string(identity_.size) + " on host '" +
           identity_.host + "' (of " + std::to_string(hosts) +
           " hosts); other ranks reached by shared memory: " + std::to_string(by_memory) +
           ", by sockets: " + std::to_string(identity_.size - 1 - by_memory);
  });
}

void World::Close() { End(""); }

bool World::Fail(const std::string& why) {
  at_once_ = true;
  return End(why);
}

// End the world. `failure`: error of this rank's program; empty: this rank leaves normally. Return true if this call
// has ended the world because of `failure`.
bool World::End(const std::string& failure) {
  if (stage_ == Stage::kForked) {
    // Leave everything as it is: threads do not survive a fork, threads of the parent may hold the locks, and other
    // memory may be mapped where the arenas were.
    [[maybe_unused]] void* left[] = {driver_.release(), engine_.release(), neighbours_.release(), timeline_.release(),
                                     devices_.release()};
    return false;
  }
  bool is_first = false;
  std::lock_guard<std::mutex> lock(closing_);
  Stage connected = Stage::kConnected;
  if (stage_.compare_exchange_strong(connected, Stage::kClosed)) {
    // A peer that receives our leave notice may free its memory, so wait for the devices first. Work that they have not
    // finished is aborted in Stop, before the second Drain.
    const bool done = at_once_ || AwaitDevices(Clock::now() + LongestDrain());
    const bool at_once = at_once_ || !done;
    const auto until = Clock::now() + kLeaveDevices;
    if (!at_once) devices_->Drain(until);
    driver_->Stop([this, at_once, &failure, &is_first] {
      if (!failure.empty()) is_first = engine_->Abort(identity_.rank, failure);
      SayFarewell(at_once);
    });
    if (at_once) devices_->Drain(until);
    devices_->Close();
    engine_->LeaveDevices(until);
    engine_->CloseDescriptors();
    EndTimeline(until);
    log_.Info([] { return "this rank has left the world"; });
  }
  stage_ = Stage::kClosed;
  if (foreign_) foreign_->Close();
  neighbours_->CloseDescriptors();
  connector_->CloseAll();
  poller_.CloseDescriptors();
  LeaveOutputsToCallers(arena_.get());
  if (arena_) arena_->CloseDescriptor();
  return is_first;
}

bool World::Leave(int timeout_ms) {
  if (timeout_ms <= 0) at_once_ = true;
  if (stage_ == Stage::kConnected && !at_once_) {
    const auto now = Clock::now();
    Clock::time_point never{};
    leave_until_.compare_exchange_strong(never, now + LongestDrain());
    const bool done = AwaitDevices(std::min(leave_until_.load(), now + std::chrono::milliseconds(timeout_ms)));
    if (!done && Clock::now() < leave_until_.load()) return false;
    at_once_ = at_once_ || !done;
  }
  Close();
  return true;
}

// Return how long to wait for devices. Without negotiation, other ranks may launch an operation as late as the stall
// limit allows, or never.
std::chrono::milliseconds World::LongestDrain() const {
  const std::chrono::milliseconds limit(settings_.stall_shutdown_ms);
  return devices_->prompt_device() && limit.count() > 0 ? limit : kLongestDrain;
}

// Return true if the devices are done in time, or will never be because the world has ended or must end at once.
bool World::AwaitDevices(Clock::time_point until) {
  while (submissions_.closed().ok() && !at_once_) {
    if (devices_->AwaitIdle(std::min(until, Clock::now() + std::chrono::milliseconds(50)))) return true;
    if (Clock::now() >= until) return false;
  }
  return true;
}

Status World::Usable() const {
  switch (stage_.load()) {
    case Stage::kConnected:
      return Status::Ok();
    case Stage::kForked:
      return Status::Failed(
          "this process was forked from one that had called hvd.init(): the engine does not cross a fork. Call "
          "hvd.init() after forking, or start workers with the 'spawn' method");
    case Stage::kOpen:
      return Status::Failed("Horovod has not been initialized: the world is not connected");
    default:
      return Status::Failed("Horovod has been shut down: this rank called shutdown");
  }
}

int64_t World::Submit(std::vector<std::unique_ptr<Operation>> operations, bool will_wait,
                      std::function<void(const Handle&)> on_done, Status* status) {
  *status = Usable();
  if (!status->ok()) return 0;
  const auto unfit = [this](const auto& operation) { return operation->prompt && !MayBePrompt(*operation); };
  if (std::any_of(operations.begin(), operations.end(), unfit)) {
    *status = Status::Invalid(
        "this operation cannot be launched without negotiation (HVD_PROMPT): NCCL must support its kind, op and dtype, "
        "and it needs the global process set, a tensor on the GPU that prompt_stream reported, and an output");
    return 0;
  }
  // Wait for the devices, because each rank frees memory once all ranks have asked for the removal, and streams of
  // other ranks may still wait on that memory.
  if (operations[0]->request.kind == OpKind::kRemoveProcessSet) AwaitDevices(Clock::now() + LongestDrain());
  callers_.OnSubmit(on_done != nullptr);
  std::shared_ptr<Handle> handle = handles_.Create(operations.size());
  handle->on_done = std::move(on_done);
  for (size_t i = 0; i < operations.size(); ++i) {
    operations[i]->handle = handle;
    operations[i]->index = i;
    operations[i]->awaited = will_wait;
  }
  *status = submissions_.Add(std::move(operations), identity_.rank);
  if (!status->ok()) {
    handles_.Forget(handle->id);
    return 0;
  }
  if (!will_wait) driver_->OnSubmit();
  return handle->id;
}

bool World::MayBePrompt(const Operation& operation) const {
  const Request& request = operation.request;
  const Device* const device = devices_->prompt_device();
  const bool into_nothing = !operation.output && request.kind != OpKind::kAlltoall && request.Bytes() > 0;
  const bool rows_of_all = request.kind != OpKind::kAllgather || request.splits.empty() ||
                           request.splits.size() == static_cast<size_t>(size());
  return device && device->ordinal() == request.device && operation.process_set == kGlobalSet && !into_nothing &&
         rows_of_all && MovesTensor(request.kind) && NcclKnows(request.kind, request.op, request.dtype);
}

int64_t World::PromptStream(int device, OpKind kind, ReduceOp op, DType dtype) {
  if (stage_ != Stage::kConnected || !devices_->prompt_calls()) return 0;
  if (!devices_->prompt_settled()) return -1;
  const Device* const met = devices_->prompt_device();
  if (!met || met->ordinal() != device || !NcclKnows(kind, op, dtype)) return 0;
  const Device::Scope scope(*met);
  return reinterpret_cast<int64_t>(devices_->prompt_calls()->StreamOn(*met));
}

void World::Block(int64_t id, uint64_t thread) {
  if (std::shared_ptr<Handle> handle = handles_.Find(id)) callers_.Block(thread, std::move(handle));
}

Code World::Wait(int64_t id, int timeout_ms, Status* status) {
  std::shared_ptr<Handle> handle = handles_.Find(id);
  if (!handle) {
    *status = Status::Invalid("no such handle: " + std::to_string(id));
    return status->code;
  }
  if (stage_ == Stage::kForked) {
    *status = Usable();
    return status->code;
  }
  if (!handle->done.load(std::memory_order_acquire) && driver_) {
    if (timeout_ms > 0) callers_.OnWait();
    if (timeout_ms <= 0 || !driver_->Wait(*handle, Clock::now() + std::chrono::milliseconds(timeout_ms))) {
      return Code::kInProgress;
    }
  }
  *status = handle->status;
  return status->code;
}

std::unique_ptr<Buffer> World::Allocate(size_t bytes, Status* status) {
  *status = Usable();
  // A peer that does not know yet that the world has ended may still write to earlier tensors, so no new tensor may use
  // their memory.
  if (status->ok()) *status = submissions_.closed();
  if (!status->ok()) return nullptr;
  std::unique_ptr<Buffer> buffer = Buffer::Allocate(arena_, bytes);
  if (!buffer) *status = Status::Failed("out of memory: cannot allocate " + std::to_string(bytes) + " bytes");
  return buffer;
}

std::shared_ptr<DeviceRegion> World::AllocateRegion(int process_set, int device, size_t bytes, Status* status) {
  *status = Usable();
  if (status->ok()) *status = submissions_.closed();
  return status->ok() ? devices_->regions().Allocate(process_set, device, bytes) : nullptr;
}

void* World::AllocateLendable(size_t bytes) {
  return Usable().ok() && submissions_.closed().ok() ? AllocateSharedOutput(bytes, arena_) : nullptr;
}

bool World::Lend(void* data) { return Usable().ok() && submissions_.closed().ok() && LendOutput(data); }

std::string World::Describe() const { return engine_ ? engine_->Describe() : "{}"; }

Status World::StartTimeline(const std::string& path, bool mark_cycles) {
  Status status = Usable();
  if (status.ok()) status = timeline_->Start(path, mark_cycles);
  if (status.ok()) devices_->times().set_on(true);
  return status;
}

Status World::StopTimeline() {
  Status status = Usable();
  if (status.ok()) EndTimeline(Clock::now() + kLeaveDevices);
  return status;
}

// Stop the timeline after adding the work that devices are still doing.
void World::EndTimeline(Clock::time_point until) {
  devices_->times().set_on(false);
  ShowDeviceTimes(timeline_.get(), devices_.get());
  while (!devices_->times().empty() && Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ShowDeviceTimes(timeline_.get(), devices_.get());
  }
  timeline_->Stop();
}

void World::InForkedChild() {
  // Only this thread exists here. A lock that another thread held is never released, so take none.
  for (World* world : AllWorlds().worlds) world->AbandonAfterFork();
  CallOrder::StartAfresh();
}

// Close all descriptors, because a child that outlives its parent must not keep the peers' connections open.
void World::AbandonAfterFork() {
  if (stage_ == Stage::kClosed) return;
  stage_ = Stage::kForked;
  if (engine_) engine_->CloseDescriptors();
  timeline_->CloseDescriptor();
  neighbours_->CloseDescriptors();
  connector_->CloseAll();
  poller_.CloseDescriptors();
  if (arena_) arena_->CloseDescriptor();
}

}  // namespace hvd
