// SPDX-License-Identifier: Apache-2.0
// The launch slot of one batch in the order in which this process launches work on GPUs: see agreement/launch_order.h
// and devices/launch_gate.h.
#pragma once

#include "core/process_set.h"
#include "core/running_batch.h"
#include "devices/device.h"

namespace hvd {

class LaunchTurn {
 public:
  // How the batch is launched: as a whole by NCCL, in several pieces, or with a slot only if the order has one for it.
  // The last kind waits only for work that is already launched, so it may run without a slot.
  enum class Kind { kWhole, kInPieces, kIfAny };

  LaunchTurn(ProcessSet* set, const RunningBatch& batch, Kind kind)
      : calls_(set->devices()->calls()),
        launches_(set->launches()),
        turn_{set->id(), set->epoch(), batch.sequence},
        kind_(kind) {
    if (set->id() != kGlobalSet && set->leads()) launches_->Want(turn_);
  }

  // Return true once the batch may launch. The caller asks repeatedly.
  bool Comes() {
    if (comes_) return true;
    if (calls_ && !calls_->IsNext()) return false;
    const bool may_come = launches_->MayCome(turn_);
    if (!may_come && kind_ != Kind::kIfAny) {
      throw DeviceError("NCCL has no turn for its operation any more: " + launches_->closed());
    }
    return comes_ = !may_come || launches_->Take(turn_, kind_ != Kind::kWhole);
  }
  // Report that all pieces of the batch have been launched.
  void Over() const { launches_->Launched(turn_); }

  // Give up the batch's slot, so that no other batch waits for it.
  static void Decline(const ProcessSet& set, const RunningBatch& batch) {
    set.launches()->Drop({set.id(), set.epoch(), batch.sequence});
    for (const auto& operation : batch.operations) {
      if (operation) operation->ticket.GiveUp();
    }
  }

 private:
  const CallOrder* calls_;  // order among the worlds of this process; null: this world takes no part in it
  LaunchOrder* launches_;   // order among the sets of this world
  Turn turn_;
  Kind kind_;
  bool comes_ = false;
};

}  // namespace hvd
