// SPDX-License-Identifier: Apache-2.0
// Runs an agreed batch of tensors on GPUs: in the memory of the device if all members can reach it, through NCCL, or
// through pinned host memory with a machine for host tensors.
#pragma once

#include <string>
#include <vector>

#include "core/process_set.h"
#include "core/running_batch.h"

namespace hvd {

// Return the stream for the batch's work: the callers' stream, if all use one, so that it follows their work there;
// else the device's own stream, after the events that mark the tensors as ready.
DeviceOrder OrderOf(const Device& device, const RunningBatch& batch);
// Return a title for the timeline such as "ALLREDUCE layer1.weight and 41 more".
std::string TitleOf(const RunningBatch& batch);
DeviceParts WholeTensors(const Entries& entries, const RunningBatch& batch);
// Return the parts of all tensors ordered by the member that receives them. `owners` receives that member for each
// part.
DeviceParts PartsByMember(const ProcessSet& set, const RunningBatch& batch, std::vector<int>* owners = nullptr);
// OwnRun returns this member's contributions to an allgather or alltoall, at its inputs. RunsOf returns the
// contributions of each member, at the positions in this member's outputs where it needs them.
DeviceParts OwnRun(const ProcessSet& set, const RunningBatch& batch);
std::vector<DeviceParts> RunsOf(const ProcessSet& set, const RunningBatch& batch);
// Return the GPU settings that all members of the set have agreed on; before they have negotiated over NCCL, this
// rank's own.
GpuWishes WishesOf(const ProcessSet& set, const Settings& settings);
// Return true if the batch is large enough to take turns on a GPU that `sharing` of the set's members use. The answer
// depends on the batch and the set alone, so that all members agree.
bool PaysOnDevice(const GpuWishes& wishes, const Entries& entries, size_t members, size_t sharing);
// Check that all tensors are on the set's device; throw DeviceError if not. Each process uses one device for a set, and
// the other members could not detect a tensor on a second one.
void CheckDevice(const Device& device, const RunningBatch& batch);

// Make the batch's machine. Throws DeviceError.
Status PrepareOnDevice(ProcessSet& set, const Settings& settings, const Entries& entries, RunningBatch* batch);

}  // namespace hvd
