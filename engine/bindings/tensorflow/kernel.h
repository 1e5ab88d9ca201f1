// SPDX-License-Identifier: Apache-2.0
// Graph node of a collective, with its attributes, which are read once.
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

  // Return the name by which ranks match tensors. For a node in a loop, concurrent iterations get different names.
  std::string NameIn(int64_t iteration) const;
  // Return how many milliseconds a call may wait on TensorFlow's thread; see the definition for the reasons.
  int PatienceMs() const;
  // Record whether this collective ran alone the last time, without other collectives beside it.
  void Remember(bool alone) const { history_.store(alone ? kAlone : kBesideOthers, std::memory_order_relaxed); }

  const hvd_kind kind;
  const char* const type;  // TensorFlow's name of the operation, such as HorovodAllreduce
  const bool grouped;
  std::string name;
  // For a group: description of its contents, which must be equal on all ranks; empty if they are not compared.
  std::string contents;
  int64_t reduce_op = 1, root = -1, context = 0;
  double prescale = 1.0, postscale = 1.0;

 private:
  enum History { kNew, kAlone, kBesideOthers };
  mutable std::atomic<int> history_{kNew};
  Program* program_ = nullptr;
};

}  // namespace hvd::tensorflow
