// SPDX-License-Identifier: Apache-2.0
// The members of a process set as NCCL knows them, each with a GPU. One thread, the devices' launcher, makes all calls,
// so that what a process launches has one order; nobody else waits for a call that waits for peers. NCCL is told not to
// block: the launcher looks whether a call is over, and ends the communicator if somebody has asked for that meanwhile.
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
  ~Communicator();  // on any thread, once the launcher has no more to do with it
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Device& device() const { return *device_; }
  int members() const { return members_; }
  int me() const { return me_; }
  size_t buffer_bytes() const { return buffer_bytes_; }
  // A launch may have to connect ranks first, which waits for those that have not come so far.
  void set_longest_launch(std::chrono::milliseconds limit) { longest_launch_ = limit; }

  // Any thread: a member is lost, nothing is waited for any longer. The launcher has to call AbortAll next.
  void LetGo() { let_go_.store(true); }

  // On the launcher, with a Scope of the device. What fails throws DeviceError, with NCCL's words.

  // Begins to connect the members. Whether they are is asked again and again: members of several sets may meet at
  // the same time, each in another order, so that nothing else may wait for it.
  void Open(const NcclId& id);
  bool IsOpen();
  // Calls NCCL with the communicator; what `calls` asks for is launched as one when it returns.
  void Launch(const std::function<void(const Nccl& nccl, NcclComm comm)>& calls);
  void Check(int result, const char* what) const;
  // What went wrong since: empty if nothing.
  std::string Trouble();
  // An operation that multiplies by the factor and sums.
  int SumTimes(double factor, DType dtype);
  // Memory through which tensors go that are not given to NCCL as they lie. What is put on the stream next may use it.
  CudaAddress Buffer(CudaStream stream);
  // Likewise; what lies there is of no account.
  CudaAddress Scratch(size_t bytes, CudaStream stream);
  // All of the batch is on the stream.
  void Launched(CudaStream stream);

  // Ends it after what is under way, if that is over by then.
  void Close(std::chrono::steady_clock::time_point until);
  // Ends it at once: kernels of its that wait for others give up.
  void Abort();
  // The same for several, none of which waits for the kernels of another.
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
  CudaEvent last_ = nullptr;  // all that was launched so far
};

}  // namespace hvd
