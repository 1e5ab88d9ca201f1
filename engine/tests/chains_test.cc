// SPDX-License-Identifier: Apache-2.0
// Ranks as real processes that die, one as a consequence of another. The remaining ranks name the one that died first,
// whichever loss they notice first.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "base/wire.h"
#include "tests/repeats.h"
#include "tests/whole_world.h"
#include "transport/socket.h"

namespace {

using hvd::OpKind;
using hvd::Status;
using hvd::testing::Rank;

constexpr int kPatienceMs = 20000;

// Return the next message between the test and a rank, or an empty string if none arrives in time.
std::string Receive(int fd) {
  char data[4096];
  pollfd one{fd, POLLIN, 0};
  const ssize_t got = poll(&one, 1, kPatienceMs) > 0 ? recv(fd, data, sizeof data, 0) : 0;
  return std::string(data, static_cast<size_t>(std::max<ssize_t>(got, 0)));
}
void Send(int fd, const std::string& message) { CHECK(send(fd, message.data(), message.size(), MSG_NOSIGNAL) > 0); }

enum class Leaving { kProperly, kAbruptly };

struct Job {
  int ranks, hosts;
  bool memory, sets;
  Leaving leaving;
};

std::string HostOf(const Job& job, int rank) { return "host" + std::to_string(rank * job.hosts / job.ranks); }

Status Reduce(Rank& self, int set, std::vector<float>* data) {
  auto operation = self.Operation<float>(OpKind::kAllreduce, "x" + std::to_string(data->size()), hvd::DType::kFloat32,
                                         {static_cast<int64_t>(data->size())}, data->data(), data->data());
  operation->process_set = set;
  return self.Run(std::move(operation));
}

// Create process sets of two adjacent ranks: {0, 1}, {1, 2}, ... Return the ids of those that contain this rank, or the
// global set if there is none.
std::vector<int> Sets(Rank& self, bool wanted) {
  std::vector<int> mine;
  for (int first = 0; wanted && first + 1 < self.size(); ++first) {
    auto add = self.Operation<char>(OpKind::kAddProcessSet, "add", hvd::DType::kUInt8, {}, nullptr, nullptr);
    add->request.splits = {first, first + 1};
    if (!self.Run(std::move(add)).ok()) break;
    if (self.rank() == first || self.rank() == first + 1) mine.push_back(static_cast<int>(self.last->value));
  }
  if (mine.empty()) mine.push_back(0);
  return mine;
}

[[noreturn]] void RunRank(const Job& job, int rank, int test) {
  hvd::Identity identity;
  identity.rank = rank;
  identity.size = job.ranks;
  identity.host = HostOf(job, rank);
  identity.world_id = "test";
  identity.secret = "a secret of the test";
  hvd::Settings settings;
  settings.shared_memory = job.memory;
  settings.spin_us = 0;
  Status status;
  auto world = hvd::World::Open(identity, settings, &status);
  std::string introduction;
  hvd::wire::Put<int32_t>(&introduction, world->tcp_port());
  Send(test, introduction + world->local_socket());
  const std::string all = Receive(test);
  std::string_view rest = all;
  std::vector<hvd::Peer> peers;
  for (int other = 0; other < job.ranks; ++other) {
    hvd::Peer peer{other, HostOf(job, other), "127.0.0.1", 0, ""};
    hvd::wire::Get(&rest, &peer.port);
    hvd::wire::GetString(&rest, &peer.local_socket);
    peers.push_back(peer);
  }
  status = world->Connect(peers, 20);
  Rank self(world.get(), rank, job.ranks);
  const std::vector<int> sets = status.ok() ? Sets(self, job.sets) : std::vector<int>();
  std::vector<float> small(10), large(20000);
  for (int round = 0; status.ok(); ++round) {
    if (round == 3) Send(test, "ready");
    for (int set : sets) {
      if (status.ok()) status = Reduce(self, set, &small);
      if (status.ok()) status = Reduce(self, set, &large);
    }
  }
  std::string outcome;
  hvd::wire::Put<int32_t>(&outcome, status.lost_rank);
  Send(test, outcome + status.text);
  if (job.leaving == Leaving::kProperly) world->Close();
  _exit(0);
}

class Processes {
 public:
  explicit Processes(const Job& job) {
    for (int rank = 0; rank < job.ranks; ++rank) {
      int ends[2];
      REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
      const pid_t pid = fork();
      if (pid == 0) RunRank(job, rank, ends[1]);
      close(ends[1]);
      pids_.push_back(pid);
      lines_.emplace_back(ends[0]);
    }
    std::string all;
    for (const hvd::Fd& line : lines_) {
      const std::string introduction = Receive(line.get());
      REQUIRE(introduction.size() > sizeof(int32_t));
      all += introduction.substr(0, sizeof(int32_t));
      hvd::wire::PutString(&all, introduction.substr(sizeof(int32_t)));
    }
    for (const hvd::Fd& line : lines_) Send(line.get(), all);
    for (const hvd::Fd& line : lines_) REQUIRE(Receive(line.get()) == "ready");
  }
  ~Processes() {
    for (pid_t pid : pids_) {
      if (pid > 0) kill(pid, SIGKILL);
    }
    for (size_t rank = 0; rank < pids_.size(); ++rank) Await(static_cast<int>(rank));
  }

  void Signal(int rank, int number) { kill(pids_[static_cast<size_t>(rank)], number); }
  void Await(int rank) {
    pid_t& pid = pids_[static_cast<size_t>(rank)];
    if (pid > 0) waitpid(std::exchange(pid, 0), nullptr, 0);
  }
  // Check the message in which a rank names the lost rank.
  void CheckNames(int rank, int victim) {
    const std::string outcome = Receive(lines_[static_cast<size_t>(rank)].get());
    std::string_view text = outcome;
    int32_t lost = -2;
    CHECK(hvd::wire::Get(&text, &lost));
    CHECK_MESSAGE(lost == victim, "rank " << rank << ": " << std::string(text));
    CHECK_MESSAGE(text.find("rank " + std::to_string(victim) + " is lost (on host '") == 0,
                  "rank " << rank << ": " << std::string(text));
  }

 private:
  std::vector<pid_t> pids_;
  std::vector<hvd::Fd> lines_;
};

const std::vector<Job> kJobs = {
    {3, 1, true, false, Leaving::kProperly},  {3, 1, true, false, Leaving::kAbruptly},
    {3, 1, false, false, Leaving::kProperly}, {3, 1, false, false, Leaving::kAbruptly},
    {4, 2, true, false, Leaving::kProperly},  {4, 2, true, false, Leaving::kAbruptly},
    {3, 3, true, false, Leaving::kAbruptly},  {3, 1, true, true, Leaving::kProperly},
    {3, 1, false, true, Leaving::kAbruptly},  {4, 2, true, true, Leaving::kProperly},
};

}  // namespace

// Rank 0 is stopped meanwhile, so that it finds all messages and losses at once when it continues.
TEST_CASE("chains: a rank that looks late names the one that died, not those who left because of it") {
  for (const Job& job : kJobs) {
    CAPTURE(job.ranks);
    CAPTURE(job.hosts);
    CAPTURE(job.memory);
    CAPTURE(job.sets);
    CAPTURE(static_cast<int>(job.leaving));
    for (unsigned round = 0; round < hvd::Repeats(2); ++round) {
      Processes processes(job);
      const int victim = job.ranks - 1 - static_cast<int>(round % 2);
      processes.Signal(0, SIGSTOP);
      processes.Signal(victim, SIGKILL);
      processes.Await(victim);
      std::vector<int> later = {0};
      for (int rank = 1; rank < job.ranks; ++rank) {
        if (rank == victim) continue;
        if (HostOf(job, rank) != HostOf(job, victim)) {  // this rank learns of the loss through rank 0
          later.push_back(rank);
          continue;
        }
        processes.CheckNames(rank, victim);
        processes.Await(rank);
      }
      processes.Signal(0, SIGCONT);
      for (int rank : later) processes.CheckNames(rank, victim);
    }
  }
}

TEST_CASE("chains: all ranks name the one that died while they leave one after the other") {
  for (const Job& job : kJobs) {
    CAPTURE(job.ranks);
    CAPTURE(job.hosts);
    CAPTURE(job.memory);
    CAPTURE(job.sets);
    CAPTURE(static_cast<int>(job.leaving));
    for (unsigned round = 0; round < hvd::Repeats(2); ++round) {
      Processes processes(job);
      const int victim = static_cast<int>(round) % job.ranks;
      processes.Signal(victim, SIGKILL);
      for (int rank = 0; rank < job.ranks; ++rank) {
        if (rank != victim) processes.CheckNames(rank, victim);
      }
    }
  }
}
