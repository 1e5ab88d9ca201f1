// SPDX-License-Identifier: Apache-2.0
// Stand-in for NCCL on a machine without a GPU, used with the stand-in for the driver. Bytes really go from process to
// process through shared memory, when it is their turn on a stream. It is as strict as NCCL: a process runs its
// launches in order, whatever their communicators. Ranks that launch in different orders wait indefinitely, and so do
// ranks whose peers are gone, until the communicator is aborted.
//
// STANDIN_NCCL_VERSION sets the version. STANDIN_NCCL_ERROR=CODE@N reports an error from the Nth launch on, and
// STANDIN_NCCL_REFUSE=CODE refuses all communicators. STANDIN_NCCL_PAUSE_US is the longest random delay of a launch in
// microseconds.
#include <dlfcn.h>

#include <cstdio>
#include <map>
#include <random>
#include <vector>

#include "nccl_elements.h"
#include "shared.h"
#include "streams.h"

namespace {

using standin::Shared;

constexpr int kMostRanks = 16;
constexpr size_t kRoom = size_t{32} << 10;  // bytes that a rank publishes at a time

enum Result : int { kSuccess = 0, kSystemError = 2, kInvalidArgument = 4, kInvalidUsage = 5, kInProgress = 7 };

struct Id {
  standin::Handle handle;
  char unused[64];
};
static_assert(sizeof(Id) == 128, "as large as NCCL's");

// Memory that the members of a communicator share.
struct Board {
  std::atomic<uint32_t> members, arrived[kMostRanks];
  std::atomic<uint64_t> steps[kMostRanks];  // how many barriers of the communicator each rank has reached
  alignas(64) uint8_t room[kMostRanks][kRoom];
};

struct Call {
  enum Kind { kAllReduce, kReduce, kReduceScatter, kBroadcast, kAllGather, kSend, kReceive } kind;
  const uint8_t* from;
  uint8_t* to;
  size_t count;
  int type, op, peer;  // `peer` is a root or the other end
  void* stream;
  double factor = 1.0;  // copied from the operation, which may be destroyed before this call runs
};

struct Comm {
  std::shared_ptr<Shared> memory;
  Board* board = nullptr;
  int ranks = 0, rank = 0;
  std::atomic<int> state{kInProgress};
  std::atomic<bool> aborted{false};
  std::atomic<int> under_way{0};  // launches, and the thread that connects
  std::atomic<uint64_t> step{0};
  std::mutex mutex;
  std::map<int, double> factors;  // by the number of the operation
  int next_op = 5;                // lower numbers are NCCL's own operations
};

// ---- this process

struct Process {
  std::atomic<long> live{0}, launches{0}, factors{0};
  std::mutex launching;                   // makes a launch's number and its position on its stream agree
  std::atomic<uint64_t> put{0}, done{0};  // numbers in the order of launches, of all communicators
  std::atomic<int> error{kSuccess};       // error that all communicators report
  int device_of_next = 0;

  static Process& Get() {
    static Process* const process = new Process;  // never destroyed, because threads may still run at the end
    return *process;
  }
};

thread_local int depth = 0;
thread_local std::vector<std::pair<Comm*, Call>> grouped;
thread_local std::vector<Comm*> aborting;

using PutTask = int (*)(void* stream, void (*run)(void*), void* argument);
PutTask FindPut() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return driver ? reinterpret_cast<PutTask>(dlsym(driver, "standin_put")) : nullptr;
}

// ---- what a kernel does

// Wait until all members have reached this barrier as often as this rank. Return false if the communicator was aborted.
bool Meet(Comm& comm) {
  const uint64_t step = ++comm.step;
  comm.board->steps[comm.rank].store(step);
  standin::Await([&] {
    if (comm.aborted.load()) return true;
    for (int j = 0; j < comm.ranks; ++j) {
      if (comm.board->steps[j].load() < step) return false;
    }
    return true;
  });
  return !comm.aborted.load();
}

// Publish [begin, end) of `from` to all members; `use` reads what all members have published.
template <typename Use>
bool Show(Comm& comm, const uint8_t* from, size_t begin, size_t end, Use use) {
  if (from && begin < end) std::memcpy(comm.board->room[comm.rank], from + begin, end - begin);
  if (!Meet(comm)) return false;
  use();
  return Meet(comm);
}

bool Reduce(Comm& comm, const Call& call, size_t first, size_t count, uint8_t* to) {
  const size_t element = standin::BytesOf(call.type);
  const size_t begin = first * element, end = begin + count * element, step = kRoom / element * element;
  for (size_t at = begin; at < end; at += step) {
    const size_t until = std::min(end, at + step);
    const bool there = Show(comm, call.from, at, until, [&] {
      if (!to) return;
      std::vector<const uint8_t*> shown;
      for (int j = 0; j < comm.ranks; ++j) shown.push_back(comm.board->room[j]);
      standin::Combine(call.type, call.op, call.factor, shown, (until - at) / element, to + (at - begin));
    });
    if (!there) return false;
  }
  return true;
}

// Copy from one member to all, or to one.
bool Give(Comm& comm, const uint8_t* from, uint8_t* to, size_t bytes, int giver) {
  for (size_t at = 0; at < bytes; at += kRoom) {
    const size_t until = std::min(bytes, at + kRoom);
    const bool there = Show(comm, comm.rank == giver ? from : nullptr, at, until, [&] {
      if (to) std::memmove(to + at, comm.board->room[giver], until - at);
    });
    if (!there) return false;
  }
  return true;
}

bool RunCall(Comm& comm, const Call& call) {
  const size_t bytes = call.count * standin::BytesOf(call.type);
  switch (call.kind) {
    case Call::kAllReduce:
      return Reduce(comm, call, 0, call.count, call.to);
    case Call::kReduce:
      return Reduce(comm, call, 0, call.count, comm.rank == call.peer ? call.to : nullptr);
    case Call::kReduceScatter:
      for (int j = 0; j < comm.ranks; ++j) {
        const size_t first = static_cast<size_t>(j) * call.count;
        if (!Reduce(comm, call, first, call.count, j == comm.rank ? call.to : nullptr)) return false;
      }
      return true;
    case Call::kBroadcast:
      return Give(comm, call.from, call.to, bytes, call.peer);
    case Call::kAllGather:
      for (int j = 0; j < comm.ranks; ++j) {
        if (!Give(comm, call.from, call.to + static_cast<size_t>(j) * bytes, bytes, j)) return false;
      }
      return true;
    default:
      return true;
  }
}

// Match the sends and receives of one group, pair by pair.
bool RunPairs(Comm& comm, const std::vector<Call>& calls) {
  for (int from = 0; from < comm.ranks; ++from) {
    for (int to = 0; to < comm.ranks; ++to) {
      const Call* mine = nullptr;
      for (const Call& call : calls) {
        if (call.kind == Call::kSend && comm.rank == from && call.peer == to) mine = &call;
      }
      size_t bytes = mine ? mine->count * standin::BytesOf(mine->type) : 0;
      // The sender publishes the size.
      const bool told = Show(comm, reinterpret_cast<const uint8_t*>(&bytes), 0, sizeof bytes,
                             [&] { std::memcpy(&bytes, comm.board->room[from], sizeof bytes); });
      if (!told) return false;
      const Call* other = nullptr;
      for (const Call& call : calls) {
        if (call.kind == Call::kReceive && comm.rank == to && call.peer == from) other = &call;
      }
      if (!Give(comm, mine ? mine->from : nullptr, other ? other->to : nullptr, bytes, from)) return false;
    }
  }
  return true;
}

struct Launch {
  Comm* comm;
  std::vector<Call> calls;
  uint64_t number;
};

void RunLaunch(void* argument) {
  const std::unique_ptr<Launch> launch(static_cast<Launch*>(argument));
  Comm& comm = *launch->comm;
  Process& process = Process::Get();
  standin::Await([&] { return process.done.load() >= launch->number || comm.aborted.load(); });
  bool there = !comm.aborted.load();
  std::vector<Call> pairs;
  for (const Call& call : launch->calls) {
    if (call.kind == Call::kSend || call.kind == Call::kReceive) {
      pairs.push_back(call);
    } else {
      there = there && RunCall(comm, call);
    }
  }
  if (there && !pairs.empty()) RunPairs(comm, pairs);
  standin::Await([&] { return process.done.load() >= launch->number; });
  process.done.store(launch->number + 1);
  --comm.under_way;
}

// ---- launching

int Refused(const char* variable, long now) {
  const char* const text = std::getenv(variable);
  if (!text) return kSuccess;
  const char* const at = std::strchr(text, '@');
  return !at || now >= std::atol(at + 1) ? std::atoi(text) : kSuccess;
}

void PauseAtRandom() {
  static const long most_us = standin::Variable("STANDIN_NCCL_PAUSE_US", 0);
  if (most_us <= 0) return;
  thread_local std::mt19937 dice(std::random_device{}());
  std::this_thread::sleep_for(std::chrono::microseconds(std::uniform_int_distribution<long>(0, most_us)(dice)));
}

int LaunchGroup() {
  static const PutTask put = FindPut();
  if (!put) return kSystemError;
  Process& process = Process::Get();
  if (!grouped.empty()) PauseAtRandom();
  while (!grouped.empty()) {
    Comm* const comm = grouped.front().first;
    auto launch = std::make_unique<Launch>();
    launch->comm = comm;
    std::vector<std::pair<Comm*, Call>> others;
    for (auto& [of, call] : grouped) {
      if (of == comm) {
        launch->calls.push_back(call);
      } else {
        others.emplace_back(of, call);
      }
    }
    grouped = std::move(others);
    if (const int error = Refused("STANDIN_NCCL_ERROR", process.launches + 1)) comm->state.store(error);
    void* const stream = launch->calls[0].stream;
    std::lock_guard<std::mutex> lock(process.launching);
    launch->number = process.put.load();
    ++comm->under_way;
    if (const int refused = put(stream, RunLaunch, launch.get())) {
      --comm->under_way;
      return refused;
    }
    launch.release();
    ++process.put;
    ++process.launches;  // counted last, because callers that wait for this count expect the launch on its stream
  }
  return kSuccess;
}

int Enqueue(Comm* comm, Call call) {
  if (!comm || comm->state.load() == kInProgress) return kInvalidUsage;
  if (call.op > 4) {
    std::lock_guard<std::mutex> lock(comm->mutex);
    const auto found = comm->factors.find(call.op);
    if (found == comm->factors.end()) return kInvalidArgument;
    call.factor = found->second;
  }
  grouped.emplace_back(comm, call);
  return depth > 0 ? kSuccess : LaunchGroup();
}

void Connect(Comm* comm, Id id) {
  comm->memory = Shared::Open(id.handle);
  if (!comm->memory) {
    comm->state.store(kSystemError);
    --comm->under_way;
    return;
  }
  comm->board = reinterpret_cast<Board*>(comm->memory->data());
  comm->board->arrived[comm->rank].store(1);
  standin::Await([&] {
    uint32_t arrived = 0;
    for (int j = 0; j < comm->ranks; ++j) arrived += comm->board->arrived[j].load();
    return arrived == static_cast<uint32_t>(comm->ranks) || comm->aborted.load();
  });
  if (!comm->aborted.load()) comm->state.store(kSuccess);
  --comm->under_way;
}

auto* const named = new std::vector<std::shared_ptr<Shared>>;  // never freed

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = static_cast<int>(standin::Variable("STANDIN_NCCL_VERSION", 22809));
  return kSuccess;
}

int ncclGetUniqueId(Id* id) {
  auto memory = Shared::Create(sizeof(Board), "stand-in of NCCL");
  if (!memory) return kSystemError;
  *id = {};
  id->handle = memory->handle();
  named->push_back(std::move(memory));
  return kSuccess;
}

#ifndef STANDIN_NCCL_OLD
struct Config {
  size_t size;
  unsigned magic, version;
  int blocking;
};

int ncclCommInitRankConfig(Comm** result, int ranks, Id id, int rank, const Config* config) {
  if (config->magic != 0xcafebeef || config->blocking != 0 || ranks > kMostRanks) return kInvalidArgument;
  if (const int refused = Refused("STANDIN_NCCL_REFUSE", 0)) return refused;
  auto* const comm = new Comm;
  comm->ranks = ranks;
  comm->rank = rank;
  ++comm->under_way;
  ++Process::Get().live;
  *result = comm;
  std::thread(Connect, comm, id).detach();
  return kInProgress;
}
#endif

// Abort a communicator. Launches run in order and freeing waits for all of them, so in a group no communicator waits
// before all of the group are aborted.
int ncclCommAbort(Comm* comm) {
  comm->aborted.store(true);
  if (depth > 0) {
    aborting.push_back(comm);
    return kSuccess;
  }
  standin::Await([&] { return comm->under_way.load() == 0; });
  --Process::Get().live;
  Process::Get().factors -= static_cast<long>(comm->factors.size());
  delete comm;
  return kSuccess;
}

int ncclCommFinalize(Comm* comm) { return comm->state.load() == kSuccess ? kSuccess : kInvalidUsage; }

int ncclCommDestroy(Comm* comm) {
  standin::Await([&] { return comm->under_way.load() == 0; });
  return ncclCommAbort(comm);
}

int ncclCommGetAsyncError(Comm* comm, int* error) {
  const int state = comm->state.load(), reported = Process::Get().error.load();
  *error = state == kSuccess ? reported : state;
  return kSuccess;
}

const char* ncclGetErrorString(int code) {
  return code == kSuccess ? "no error" : code == kSystemError ? "unhandled system error" : "an error";
}
const char* ncclGetLastError(Comm*) { return ""; }

int ncclGroupStart() {
  ++depth;
  return kSuccess;
}

int ncclGroupEnd() {
  if (--depth > 0) return kSuccess;
  for (Comm* comm : std::exchange(aborting, {})) ncclCommAbort(comm);
  return LaunchGroup();
}

int ncclRedOpCreatePreMulSum(int* op, const void* factor, int type, int, Comm* comm) {
  std::lock_guard<std::mutex> lock(comm->mutex);
  *op = comm->next_op++;
  comm->factors[*op] = standin::NumberOf(type, factor);
  ++Process::Get().factors;
  return kSuccess;
}

int ncclRedOpDestroy(int op, Comm* comm) {
  std::lock_guard<std::mutex> lock(comm->mutex);
  if (!comm->factors.erase(op)) return kInvalidArgument;
  --Process::Get().factors;
  return kSuccess;
}

int ncclAllReduce(const uint8_t* from, uint8_t* to, size_t count, int type, int op, Comm* comm, void* stream) {
  return Enqueue(comm, {Call::kAllReduce, from, to, count, type, op, -1, stream});
}
int ncclReduce(const uint8_t* from, uint8_t* to, size_t count, int type, int op, int root, Comm* comm, void* stream) {
  return Enqueue(comm, {Call::kReduce, from, to, count, type, op, root, stream});
}
int ncclReduceScatter(const uint8_t* from, uint8_t* to, size_t count, int type, int op, Comm* comm, void* stream) {
  return Enqueue(comm, {Call::kReduceScatter, from, to, count, type, op, -1, stream});
}
int ncclBroadcast(const uint8_t* from, uint8_t* to, size_t count, int type, int root, Comm* comm, void* stream) {
  return Enqueue(comm, {Call::kBroadcast, from, to, count, type, 0, root, stream});
}
int ncclAllGather(const uint8_t* from, uint8_t* to, size_t count, int type, Comm* comm, void* stream) {
  return Enqueue(comm, {Call::kAllGather, from, to, count, type, 0, -1, stream});
}
int ncclSend(const uint8_t* from, size_t count, int type, int peer, Comm* comm, void* stream) {
  return Enqueue(comm, {Call::kSend, from, nullptr, count, type, 0, peer, stream});
}
int ncclRecv(uint8_t* to, size_t count, int type, int peer, Comm* comm, void* stream) {
  return Enqueue(comm, {Call::kReceive, nullptr, to, count, type, 0, peer, stream});
}

// ---- for tests alone

long standin_nccl_live() { return Process::Get().live.load(); }  // communicators
long standin_nccl_launches() { return Process::Get().launches.load(); }
long standin_nccl_factors() { return Process::Get().factors.load(); }  // operations with a factor

// Report this error from now on, as with STANDIN_NCCL_ERROR.
void standin_nccl_fail(int code) { Process::Get().error.store(code); }

}  // extern "C"
