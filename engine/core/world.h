// SPDX-License-Identifier: Apache-2.0
// One world as seen by one process: opens the listeners, meets the peers, and offers the operations that the C API
// exposes. Several can live in one process; none knows of another, but for the order in which NCCL launches what they
// ask for (devices/launch_gate).
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/config.h"
#include "core/callers.h"
#include "core/driver.h"
#include "core/engine.h"
#include "core/handle.h"
#include "core/submissions.h"
#include "memory/buffer.h"
#include "tracing/timeline.h"

namespace hvd {

class World {
 public:
  static std::unique_ptr<World> Open(const Identity& identity, const Settings& settings, Status* status);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int size() const { return identity_.size; }
  // Whether tensors that may travel as another dtype do, alike on all ranks, once connected: between ranks of one host
  // that saves nothing.
  bool compresses() const { return !one_host_ || settings_.deterministic; }
  int tcp_port() const { return connector_->port(); }
  // Returns the bytes that this rank has moved so far. Any thread may call it.
  TrafficSums traffic() const { return connector_->traffic.Load(); }
  const std::string& local_socket() const { return neighbours_->name(); }
  // Who tells what the program is doing when other ranks ask; before Connect.
  void UseStackTeller(const StackTeller& teller) { stack_teller_ = teller; }
  void UseBlockTeller(const StackTeller& teller) { block_teller_ = teller; }
  // Another library is to move what it can, by jobs that the client takes; before Connect, alike on all ranks.
  void UseForeignJobs();
  // The GPUs of this process, as its tensors need them.
  Devices& devices() { return *devices_; }
  // Not ok once the world has ended, and why.
  Status closed() { return submissions_.closed(); }
  ForeignJobs* foreign_jobs() const { return foreign_.get(); }  // null if it does not
  // What an autotuner has found in an earlier world, instead of tuning; before Connect, alike on all ranks.
  void UseTuning(const Tuning& tuning);
  Status Connect(const std::vector<Peer>& peers, double timeout_s);
  // After the devices are done with what was launched, as they are when all ranks have come to it; or, after the
  // longest time that is granted for that, without them.
  void Close();
  // The same step by step: false if they were not done within so many milliseconds. 0: without them, at once. Any
  // thread, also while another one waits in Close.
  bool Leave(int timeout_ms);
  // Like Leave(0), because this rank's program has failed: every rank is told this text, and that this rank is to
  // blame. False if the world had ended before, or another thread ends it.
  bool Fail(const std::string& why);

  // To be filled in for Submit.
  std::vector<std::unique_ptr<Operation>> NewOperations(size_t count) { return submissions_.NewOperations(count); }
  // The operations share one new handle, whose id is returned; 0 and a status if they are refused.
  int64_t Submit(std::vector<std::unique_ptr<Operation>> operations, bool will_wait,
                 std::function<void(const Handle&)> on_done, Status* status);
  // Where operations of this kind would be launched without agreement; 0: they cannot be; -1: that is not known before
  // an operation on a GPU is done. In this world all members come to the same answer.
  int64_t PromptStream(int device, OpKind kind, ReduceOp op, DType dtype);
  // From here to Unblock this thread does nothing but wait for the handle.
  void Block(int64_t id, uint64_t thread);
  void Unblock(uint64_t thread) { callers_.Unblock(thread); }
  // This thread asks whether something is done.
  void NoteQuestion() { callers_.OnWait(); }
  std::shared_ptr<Handle> Find(int64_t id) const { return handles_.Find(id); }
  // One that is done, which is then released; nullptr for any other.
  std::shared_ptr<Handle> TakeDone(int64_t id) { return stage_ == Stage::kForked ? nullptr : handles_.TakeDone(id); }
  // kInProgress after `timeout_ms`.
  Code Wait(int64_t id, int timeout_ms, Status* status);
  void Release(int64_t id) { handles_.Forget(id); }
  // Memory for tensors, in shared memory if this world has any with room. Null and a status on failure.
  std::unique_ptr<Buffer> Allocate(size_t bytes, Status* status);
  // The same on a device, where the members of a process set reach it; null unless they are known to.
  std::shared_ptr<DeviceRegion> AllocateRegion(int process_set, int device, size_t bytes, Status* status);
  // Shared memory to hand over to callers and take back; see memory/output_pool. Null where there is none.
  void* AllocateLendable(size_t bytes);
  bool Lend(void* data);
  std::string Describe() const;
  Status StartTimeline(const std::string& path, bool mark_cycles);
  Status StopTimeline();
  void ShowInTimeline(const std::string& name, int64_t began_ns, int64_t ended_ns) {
    timeline_->Show(name, began_ns, ended_ns);
  }
  // Whether anything can be submitted. To be asked before all else: in a child of a fork locks may be held by threads
  // that it does not have, ours and those of CUDA's driver.
  Status Usable() const;

 private:
  World(const Identity& identity, const Settings& settings);
  bool MayBePrompt(const Operation& operation) const;
  Status CreateArena(const std::vector<Peer>& peers);
  void WarnOfSockets(const Status& no_arena) const;
  void TellOfMeeting(size_t hosts) const;
  void TellWhatIsPossible();
  Status FailToConnect(const Status& why);
  bool End(const std::string& failure);
  void SayFarewell(bool at_once);
  std::chrono::milliseconds LongestDrain() const;
  bool AwaitDevices(std::chrono::steady_clock::time_point until);
  void EndTimeline(std::chrono::steady_clock::time_point until);
  static void InForkedChild();
  void AbandonAfterFork();

  Identity identity_;
  Settings settings_;
  const Log log_;
  bool one_host_ = false;  // by the hosts that ranks were given, whether they share memory or not
  Poller poller_;
  std::unique_ptr<Devices> devices_;  // outlives handles, which may hold memory there
  ConnectorIdentity credentials_;
  std::shared_ptr<Arena> arena_;  // shared with the buffers in it, which may outlive us
  std::unique_ptr<Neighbours> neighbours_;
  std::unique_ptr<Connector> connector_;
  Submissions submissions_;
  Callers callers_;
  HandleTable handles_;
  std::unique_ptr<Timeline> timeline_;
  StackTeller stack_teller_, block_teller_;
  std::unique_ptr<ForeignJobs> foreign_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Driver> driver_;
  enum class Stage { kOpen, kConnected, kClosed, kForked };
  std::atomic<Stage> stage_{Stage::kOpen};
  std::mutex closing_;  // a second Close waits for the first; never taken in a forked child
  std::atomic<bool> at_once_{false};
  std::atomic<std::chrono::steady_clock::time_point> leave_until_{};  // since it was first asked to leave
};

}  // namespace hvd
