// SPDX-License-Identifier: Apache-2.0
// An agreed batch of tensors on GPUs by NCCL, where it serves the set's members and the batch; where some members share
// a GPU, through its memory there and by NCCL between GPUs.
#pragma once

#include <memory>

#include "collectives/over_nccl.h"
#include "core/process_set.h"
#include "core/running_batch.h"

namespace hvd {

// RunningBatch::way_on_device
constexpr char kByNccl[] = "NCCL";
constexpr char kByIpcAndNccl[] = "IPC_NCCL";
bool WentByNccl(const RunningBatch& batch);

// Whether NCCL can do it at all, leaving aside what settings ask for.
bool NcclKnows(OpKind kind, ReduceOp op, DType dtype);
// What it has to be told for a batch, if no members share a GPU.
NcclLaunches::Work LaunchOf(const ProcessSet& set, const RunningBatch& batch);

// After the meeting. All members come to the same answer. Throws DeviceError if NCCL was asked for by name and cannot.
bool GoesByNccl(const ProcessSet& set, const RunningBatch& batch);
// The machine of a batch that does; names its way.
std::unique_ptr<Machine> MakeNcclMachine(ProcessSet& set, RunningBatch* batch, DeviceOrder order);

}  // namespace hvd
