// SPDX-License-Identifier: Apache-2.0
// The place of one batch among all that this process launches on GPUs: see agreement/launch_order.h and
// devices/launch_gate.h.
#pragma once

#include "core/process_set.h"
#include "core/running_batch.h"
#include "devices/device.h"

namespace hvd {

class LaunchTurn {
 public:
  // Of a batch that NCCL launches as a whole; of one that is launched piece by piece; of one that waits for nothing but
  // what is launched, and goes on without a turn when nobody gives any.
  enum class Kind { kWhole, kInPieces, kIfAny };

  LaunchTurn(ProcessSet* set, const RunningBatch& batch, Kind kind)
      : calls_(set->devices()->calls()),
        launches_(set->launches()),
        turn_{set->id(), set->epoch(), batch.sequence},
        kind_(kind) {
    if (set->id() != kGlobalSet && set->leads()) launches_->Want(turn_);
  }

  // Asked until it is there.
  bool Comes() {
    if (comes_) return true;
    if (calls_ && !calls_->IsNext()) return false;
    const bool may_come = launches_->MayCome(turn_);
    if (!may_come && kind_ != Kind::kIfAny) {
      throw DeviceError("NCCL has no turn for its operation any more: " + launches_->closed());
    }
    return comes_ = !may_come || launches_->Take(turn_, kind_ != Kind::kWhole);
  }
  // All of the batch is launched.
  void Over() const { launches_->Launched(turn_); }

  // The batch needs none: nobody is to wait for it.
  static void Decline(const ProcessSet& set, const RunningBatch& batch) {
    set.launches()->Drop({set.id(), set.epoch(), batch.sequence});
    for (const auto& operation : batch.operations) {
      if (operation) operation->ticket.GiveUp();
    }
  }

 private:
  const CallOrder* calls_;  // among the worlds of this process; null: this one takes no part in that
  LaunchOrder* launches_;   // among the sets of this world
  Turn turn_;
  Kind kind_;
  bool comes_ = false;
};

}  // namespace hvd
