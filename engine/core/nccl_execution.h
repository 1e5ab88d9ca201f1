// SPDX-License-Identifier: Apache-2.0
// Runs an agreed batch of tensors on GPUs by NCCL, where NCCL supports the members and the batch. If some members share
// a GPU, data goes through that GPU's memory, and by NCCL between GPUs.
#pragma once

#include <memory>

#include "collectives/over_nccl.h"
#include "core/process_set.h"
#include "core/running_batch.h"

namespace hvd {

// Values of RunningBatch::way_on_device.
constexpr char kByNccl[] = "NCCL";
constexpr char kByIpcAndNccl[] = "IPC_NCCL";
bool WentByNccl(const RunningBatch& batch);

// Return true if NCCL supports the operation, ignoring settings.
bool NcclKnows(OpKind kind, ReduceOp op, DType dtype);
// Return the NCCL calls for a batch whose members do not share GPUs.
NcclLaunches::Work LaunchOf(const ProcessSet& set, const RunningBatch& batch);

// Return true if the batch goes by NCCL. Requires that the setup negotiation is finished; all members get the same
// answer. Throws DeviceError if the settings demand NCCL and it is not available.
bool GoesByNccl(const ProcessSet& set, const RunningBatch& batch);
// Make the machine for a batch that goes by NCCL, and set its way_on_device.
std::unique_ptr<Machine> MakeNcclMachine(ProcessSet& set, RunningBatch* batch, DeviceOrder order);

}  // namespace hvd
