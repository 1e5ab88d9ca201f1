// SPDX-License-Identifier: Apache-2.0
// A collective's node in a graph: what its attributes say, read once.
#pragma once

#include <hvd/engine.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "bindings/tensorflow/c_api.h"
#include "bindings/tensorflow/registry.h"

namespace hvd::tensorflow {

struct Kernel {
  Kernel(hvd_kind kind, const char* type, bool grouped, TF_OpKernelConstruction* construction);

  // The name under which ranks find each other's; of a node in a loop, for each iteration that may run beside others.
  std::string NameIn(int64_t iteration) const;
  // How long a call may wait on the spot; see the definition.
  int PatienceMs() const;
  // Whether other collectives were under way beside this one, the last time.
  void Remember(bool alone) const { history_.store(alone ? kAlone : kBesideOthers, std::memory_order_relaxed); }

  const hvd_kind kind;
  const char* const type;  // such as HorovodAllreduce
  const bool grouped;
  std::string name;
  std::string contents;  // of a group: what every rank must have put into it, in words; empty if that is not compared
  int64_t reduce_op = 1, root = -1, context = 0;
  double prescale = 1.0, postscale = 1.0;

 private:
  enum History { kNew, kAlone, kBesideOthers };
  mutable std::atomic<int> history_{kNew};
  Program* program_ = nullptr;
};

}  // namespace hvd::tensorflow
