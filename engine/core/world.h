// SPDX-License-Identifier: Apache-2.0
// One world as seen by one process: opens the listeners, connects to the peers, and offers the operations that the C
// API exposes. A process can have several worlds. They are independent, except for the order in which NCCL launches
// their operations (devices/launch_gate).
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
  // Return true if tensors with a wire type are sent in that type; between ranks of one host that saves nothing. After
  // Connect the answer is equal on all ranks.
  bool compresses() const { return !one_host_ || settings_.deterministic; }
  int tcp_port() const { return connector_->port(); }
  // Return the bytes that this rank has moved so far. Any thread may call it.
  TrafficSums traffic() const { return connector_->traffic.Load(); }
  const std::string& local_socket() const { return neighbours_->name(); }
  // Set what describes the program, or one of its threads, when other ranks ask. Call before Connect.
  void UseStackTeller(const StackTeller& teller) { stack_teller_ = teller; }
  void UseBlockTeller(const StackTeller& teller) { block_teller_ = teller; }
  // Let an external library move data where it can, by jobs that the client takes. Call before Connect, on all ranks or
  // none.
  void UseForeignJobs();
  // GPUs of this process, opened when tensors need them.
  Devices& devices() { return *devices_; }
  // Return ok while the world goes on, else why it has ended.
  Status closed() { return submissions_.closed(); }
  ForeignJobs* foreign_jobs() const { return foreign_.get(); }  // null unless UseForeignJobs was called
  // Use values that an autotuner found in an earlier world instead of tuning. Call before Connect, with equal values on
  // all ranks.
  void UseTuning(const Tuning& tuning);
  Status Connect(const std::vector<Peer>& peers, double timeout_s);
  // End the world. Waits until the devices have finished the launched work, which may need all ranks to launch it too,
  // or until the longest time for that has passed.
  void Close();
  // End the world within a time limit. Return false if the devices were not done after `timeout_ms`; 0 abandons their
  // work at once. Any thread may call this, also while another one waits in Close.
  bool Leave(int timeout_ms);
  // End the world at once because this rank's program has failed: every rank gets this text, with this rank as the
  // cause. Return false if the world had ended before or another thread is ending it.
  bool Fail(const std::string& why);

  // Return operations for the caller to fill in and pass to Submit.
  std::vector<std::unique_ptr<Operation>> NewOperations(size_t count) { return submissions_.NewOperations(count); }
  // Submit operations and return the id of the new handle that they share, or 0 and a status if they are refused.
  int64_t Submit(std::vector<std::unique_ptr<Operation>> operations, bool will_wait,
                 std::function<void(const Handle&)> on_done, Status* status);
  // Return the stream on which operations of this kind are launched without negotiation; 0 if they cannot be; -1 if
  // that is not known yet because no operation on a GPU is done. All members of this world get the same answer.
  int64_t PromptStream(int device, OpKind kind, ReduceOp op, DType dtype);
  // Declare that this thread does nothing but wait for the handle until Unblock.
  void Block(int64_t id, uint64_t thread);
  void Unblock(uint64_t thread) { callers_.Unblock(thread); }
  // Record that this thread polls an operation.
  void NoteQuestion() { callers_.OnWait(); }
  std::shared_ptr<Handle> Find(int64_t id) const { return handles_.Find(id); }
  // Remove and return a handle that is done; return null for any other.
  std::shared_ptr<Handle> TakeDone(int64_t id) { return stage_ == Stage::kForked ? nullptr : handles_.TakeDone(id); }
  // Wait for a handle. Return kInProgress after `timeout_ms`.
  Code Wait(int64_t id, int timeout_ms, Status* status);
  void Release(int64_t id) { handles_.Forget(id); }
  // Allocate memory for tensors, in shared memory if this world has room there. Return null and a status on failure.
  std::unique_ptr<Buffer> Allocate(size_t bytes, Status* status);
  // Allocate memory on a device that the members of a process set can map; return null unless they are known to do so.
  std::shared_ptr<DeviceRegion> AllocateRegion(int process_set, int device, size_t bytes, Status* status);
  // Allocate shared memory that can be lent to callers (see memory/output_pool); return null if there is none.
  void* AllocateLendable(size_t bytes);
  bool Lend(void* data);
  std::string Describe() const;
  Status StartTimeline(const std::string& path, bool mark_cycles);
  Status StopTimeline();
  void ShowInTimeline(const std::string& name, int64_t began_ns, int64_t ended_ns) {
    timeline_->Show(name, began_ns, ended_ns);
  }
  // Return ok if operations can be submitted. Call it before all else: in a forked child, locks may be held by threads
  // that do not exist there, in the engine and in CUDA's driver.
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
  bool one_host_ = false;  // true if all ranks have one host identifier, whether or not they share memory
  Poller poller_;
  std::unique_ptr<Devices> devices_;  // outlives handles, which may hold memory on devices
  ConnectorIdentity credentials_;
  std::shared_ptr<Arena> arena_;  // shared with its buffers, which may outlive this world
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
  std::mutex closing_;  // makes a second Close wait for the first; never taken in a forked child
  std::atomic<bool> at_once_{false};
  // Deadline, set by the first call of Leave with a time limit.
  std::atomic<std::chrono::steady_clock::time_point> leave_until_{};
};

}  // namespace hvd
