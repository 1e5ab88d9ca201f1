// SPDX-License-Identifier: Apache-2.0
// An agreed batch of tensors on GPUs: by the memory of the device where all members reach it, else through pinned host
// memory and whatever machine would run it there.
#pragma once

#include "core/process_set.h"
#include "core/running_batch.h"

namespace hvd {

// How the bytes of such a batch travel, as far as that is known.
const char* WayOnDevice(const ProcessSet& set);

// Makes the batch's machine. Throws DeviceError.
Status PrepareOnDevice(ProcessSet& set, const Settings& settings, const Entries& entries, RunningBatch* batch);

}  // namespace hvd
