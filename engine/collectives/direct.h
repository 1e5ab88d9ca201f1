// SPDX-License-Identifier: Apache-2.0
// Allreduce of tensors that lie in memory which all members reach: nothing is staged. Each member owns a share of the
// batch, sums it in rank order straight from the tensors of all and writes the result into all. They wait
// for each other twice: until every tensor is there, and until every share is done. The same bits as with staging.
#pragma once

#include <vector>

#include "collectives/machine.h"

namespace hvd {

class DirectAllreduce : public Machine {
 public:
  // views[j]: the tensors of member j, of the same sizes in every view.
  DirectAllreduce(Lane* lane, std::vector<Flat> views, Reduction reduction);
  Step Advance() override;

 private:
  enum class Stage { kArriving, kWaiting, kReducing, kLeaving };

  void ReduceBlock(size_t begin, size_t length);
  // The stretch at hand.
  void ScaleSources(size_t bytes);
  void ReduceStretch(size_t bytes);

  Lane* lane_;
  std::vector<Flat> views_;
  Reduction reduction_;
  Range share_;
  Stage stage_ = Stage::kArriving;
  std::vector<std::byte*> places_;    // of the stretch at hand, by member
  std::vector<const void*> sources_;  // the same, or what prescaling made of it
  std::vector<std::byte> scratch_;
};

}  // namespace hvd
