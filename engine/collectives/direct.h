// SPDX-License-Identifier: Apache-2.0
// Allreduce of tensors in memory that all members can access, without staging. Each member owns a share of the batch,
// sums it in rank order directly from all members' tensors and writes the result into all of them. The members
// synchronise twice: when all tensors are ready, and when all shares are done. The bits equal those of a staged
// allreduce.
#pragma once

#include <vector>

#include "collectives/machine.h"

namespace hvd {

class DirectAllreduce : public Machine {
 public:
  // views[j] are the tensors of member j; sizes are equal in all views.
  DirectAllreduce(Lane* lane, std::vector<Flat> views, Reduction reduction);
  Step Advance() override;

 private:
  enum class Stage { kArriving, kWaiting, kReducing, kLeaving };

  void ReduceBlock(size_t begin, size_t length);
  // Process the current stretch, which lies in one tensor.
  void ScaleSources(size_t bytes);
  void ReduceStretch(size_t bytes);

  Lane* lane_;
  std::vector<Flat> views_;
  Reduction reduction_;
  Range share_;
  Stage stage_ = Stage::kArriving;
  std::vector<std::byte*> places_;    // addresses of the current stretch, by member
  std::vector<const void*> sources_;  // these addresses, or those of scaled copies of the data
  std::vector<std::byte> scratch_;
};

}  // namespace hvd
