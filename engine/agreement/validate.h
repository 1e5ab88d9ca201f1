// SPDX-License-Identifier: Apache-2.0
// Do all members mean the same collective? The checks, their order, and the texts that users read when they do not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agreement/reports.h"

namespace hvd {

// Ok, or the first disagreement in the order: dtype, operation, shape, factors, reduce operation, what only this kind
// of operation knows, device. `ranks` are the global ranks of the members. Members that said nothing (joined) are not
// asked.
Status Validate(const Reports& reports, const std::vector<int>& ranks);

// Members must put a tensor into the same group, or the group could never be complete everywhere. Checked before
// Validate, which only runs once the whole group is complete.
Status ValidateGroup(const Reports& reports, const std::vector<int>& ranks);

// What members cannot know from their own request (see Entry::sizes), for reports that passed Validate.
// Process sets are not described here: their ids belong to the coordinator.
std::vector<int64_t> SizesOf(const Reports& reports);

Status NotWhileJoined(OpKind kind, const std::string& name, int joined_rank);
// `callers` still wait in `call` (see SpokenCall) for a rank that has left.
Status Departed(int rank, const std::vector<int>& callers, const std::string& call);
Status UnknownSlot(int rank, uint32_t slot);
Status UnknownProcessSet(const std::string& name, int64_t id);

}  // namespace hvd
