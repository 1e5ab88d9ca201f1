// SPDX-License-Identifier: Apache-2.0
// One collective in progress: the engine works on the operation's tensors until TensorFlow is informed.
#pragma once

#include <hvd/engine.h>

#include <atomic>
#include <string>
#include <vector>

#include "bindings/tensorflow/done.h"
#include "bindings/tensorflow/kernel.h"

namespace hvd::tensorflow {

class Task {
 public:
  // Start the collective; it completes asynchronously, perhaps before this returns.
  static void Start(const Kernel& kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done);

 private:
  // Result whose shape the engine determines later.
  struct Place {
    Task* task;
    int index;
  };

  Task(const Kernel& kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done);
  ~Task();
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  // Steps of a task; each returns false once the operation has failed.
  bool Describe(const bindings::Membership& member);
  bool DescribeTensor(size_t i, const bindings::Membership& member);
  bool DescribeSplits(const bindings::Membership& member);
  void DescribeContents();
  bool CheckReduction(const hvd_op& op);
  bool MakeResult(size_t i, int type, const bindings::Membership& member);
  void Submit(const bindings::Membership& member);

  static void OnDone(void* task, const hvd_status* status);
  static void* Allocate(void* place, const int64_t* shape, int32_t ndim);
  bool Leave() { return parties_.fetch_sub(1) == 1; }
  void Collect();
  void End();

  bool Fail(int code, const std::string& text);
  void Fail(const hvd_status& status);

  const Kernel& kernel_;
  TF_OpKernelContext* const context_;
  Done done_;
  const std::string name_;
  std::string group_;
  hvd_world* world_ = nullptr;
  int64_t handle_ = 0;
  int32_t members_ = 0;
  std::atomic<int> parties_{1};  // parties that use this task: Start, and the engine while it works on the operation
  uint64_t start_ = 0;
  bool alone_ = true;  // true if no other collective was in progress when this one started
  std::vector<hvd_op> ops_;
  std::vector<std::string> names_;
  std::vector<std::vector<int64_t>> shapes_;
  std::vector<int64_t> splits_;
  std::vector<Place> places_;
  std::vector<int> types_;
  std::vector<TF_Tensor*> tensors_;  // owned by this task
  int code_ = kOk;
  std::string error_;
};

}  // namespace hvd::tensorflow
