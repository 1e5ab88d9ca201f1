// SPDX-License-Identifier: Apache-2.0
// An agreed batch of tensors on GPUs: by the memory of the device where all members reach it, else through pinned host
// memory and whatever machine would run it there.
#pragma once

#include <string>
#include <vector>

#include "core/process_set.h"
#include "core/running_batch.h"

namespace hvd {

// On the caller's own stream, behind all that it has put there; else on ours, after what makes the tensors ready.
DeviceOrder OrderOf(const Device& device, const RunningBatch& batch);
// "ALLREDUCE layer1.weight and 41 more"
std::string TitleOf(const RunningBatch& batch);
DeviceParts WholeTensors(const Entries& entries, const RunningBatch& batch);
// What goes to one member, of all tensors, after what goes to the one before it; `owners`: that member, by part.
DeviceParts PartsByMember(const ProcessSet& set, const RunningBatch& batch, std::vector<int>* owners = nullptr);
// What a member contributes to the results of an allgather or alltoall: this one, with its inputs; and each, with the
// places in this member's outputs for what it wants of it.
DeviceParts OwnRun(const ProcessSet& set, const RunningBatch& batch);
std::vector<DeviceParts> RunsOf(const ProcessSet& set, const RunningBatch& batch);
// What the set's members ask for; once they have met over NCCL, if there are several.
GpuWishes WishesOf(const ProcessSet& set, const Settings& settings);
// Whether a batch is worth turns on a GPU that `sharing` ranks, of all the members, take. Follows from the batch and
// the set alone, so that all members come to the same answer.
bool PaysOnDevice(const GpuWishes& wishes, const Entries& entries, size_t members, size_t sharing);
// The members work on one device in each process. Not all of them would notice a tensor on another. Throws DeviceError.
void CheckDevice(const Device& device, const RunningBatch& batch);

// Makes the batch's machine. Throws DeviceError.
Status PrepareOnDevice(ProcessSet& set, const Settings& settings, const Entries& entries, RunningBatch* batch);

}  // namespace hvd
