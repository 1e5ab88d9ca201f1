// SPDX-License-Identifier: Apache-2.0
// An agreed batch of tensors on GPUs by NCCL, where it serves the set's members and the batch.
#pragma once

#include <memory>

#include "core/process_set.h"
#include "core/running_batch.h"

namespace hvd {

constexpr char kByNccl[] = "NCCL";  // RunningBatch::way_on_device

// After the meeting. All members come to the same answer. Throws DeviceError if NCCL was asked for by name and cannot.
bool GoesByNccl(ProcessSet& set, const Settings& settings, const RunningBatch& batch);
// The machine of a batch that does.
std::unique_ptr<Machine> MakeNcclMachine(ProcessSet& set, const RunningBatch& batch, DeviceOrder order);

}  // namespace hvd
