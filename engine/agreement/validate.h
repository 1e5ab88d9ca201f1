// SPDX-License-Identifier: Apache-2.0
// Checks that all members mean the same collective, with the error texts for users if they do not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agreement/reports.h"

namespace hvd {

// Return ok, or the first disagreement in this order: dtype, operation, shape, factors, reduce operation, what only
// this kind of operation has, device. `ranks` are the global ranks of the members. Members that have joined are not
// checked.
Status Validate(const Reports& reports, const std::vector<int>& ranks);

// Check that all members put a tensor into the same group, because otherwise the group would never be complete on all
// of them. Runs before Validate, which needs the whole group to be complete.
Status ValidateGroup(const Reports& reports, const std::vector<int>& ranks);

// Return what members cannot know from their own request (see Entry::sizes), for reports that passed Validate. Process
// sets are not included, because the coordinator assigns their ids.
std::vector<int64_t> SizesOf(const Reports& reports);

Status NotWhileJoined(OpKind kind, const std::string& name, int joined_rank);
// Return the error for `callers`, which wait in `call` (see SpokenCall) for a rank that has left.
Status Departed(int rank, const std::vector<int>& callers, const std::string& call);
Status UnknownSlot(int rank, uint32_t slot);
Status UnknownProcessSet(const std::string& name, int64_t id);

}  // namespace hvd
