// SPDX-License-Identifier: Apache-2.0
// NCCL communicator of a process set's members, one per GPU. A single thread, the launcher, makes all calls, so that
// the launches of a process have one order and no other thread waits in a call that waits for peers. NCCL runs in
// non-blocking mode: the launcher polls whether a call is complete, and aborts the communicator if another thread
// requests that meanwhile.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "devices/device.h"
#include "devices/nccl.h"

namespace hvd {

class Communicator {
 public:
  Communicator(const Nccl* nccl, Device* device, int members, int me, size_t buffer_bytes);
  ~Communicator();  // may run on any thread, once the launcher no longer uses this object
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Device& device() const { return *device_; }
  int members() const { return members_; }
  int me() const { return me_; }
  size_t buffer_bytes() const { return buffer_bytes_; }
  // Set the time limit of a launch. NCCL may have to connect ranks first, which waits for ranks that are late.
  void set_longest_launch(std::chrono::milliseconds limit) { longest_launch_ = limit; }

  // Stop waiting for other ranks, because a member is lost. Any thread may call this; the launcher must call AbortAll
  // next.
  void LetGo() { let_go_.store(true); }

  // Call the methods below on the launcher inside a Scope of the device. On failure they throw DeviceError with NCCL's
  // text.

  // Start to connect the members. IsOpen is then polled and nothing waits, because members of several sets may connect
  // at once, in different orders on different ranks.
  void Open(const NcclId& id);
  bool IsOpen();
  // Call NCCL inside a group: everything that `calls` requests is launched together when it returns.
  void Launch(const std::function<void(const Nccl& nccl, NcclComm comm)>& calls);
  void Check(int result, const char* what) const;
  // Return the error that NCCL has reported since the members were connected, or an empty text.
  std::string Trouble();
  // Return an NCCL operation that multiplies by `factor` and sums.
  int SumTimes(double factor, DType dtype);
  // Return the buffer for tensors that are not passed to NCCL in place. Work that is put on the stream next may use it.
  CudaAddress Buffer(CudaStream stream);
  // Return memory whose contents do not matter. Work that is put on the stream next may use it.
  CudaAddress Scratch(size_t bytes, CudaStream stream);
  // Record that all work of a batch is on the stream.
  void Launched(CudaStream stream);

  // Destroy the communicator once the work in progress is done; abort it at `until`.
  void Close(std::chrono::steady_clock::time_point until);
  // Abort the communicator at once: its kernels stop waiting for other ranks.
  void Abort();
  // Abort several communicators together, so that none waits for the kernels of another.
  static void AbortAll(const std::vector<std::shared_ptr<Communicator>>& all);

 private:
  int Await(int result, std::chrono::steady_clock::time_point until);
  void GoAfterLast(CudaStream stream) const;
  void FreeMemory();

  const Nccl& nccl_;
  Device* device_;
  int members_, me_;
  size_t buffer_bytes_;
  std::chrono::milliseconds longest_launch_{0};
  NcclComm comm_ = nullptr;
  std::atomic<bool> let_go_{false};
  std::map<std::pair<DType, double>, int> factors_;
  CudaAddress buffer_ = 0, scratch_ = 0;
  size_t scratch_bytes_ = 0;
  CudaStream last_stream_ = nullptr;
  CudaEvent last_ = nullptr;  // event after everything that was launched so far
};

}  // namespace hvd
