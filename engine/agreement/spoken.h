// SPDX-License-Identifier: Apache-2.0
// Names of operations for users: what they called, instead of the names by which ranks agree.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "agreement/message.h"
#include "base/types.h"

namespace hvd {

// Return a text such as "allreduce 'x'", "grouped_allreduce 'g' of 2 tensors" or "hvd.barrier()".
std::string Spoken(const Request& request);

// Return the operation's name as the timeline shows it, such as "'allreduce.loss'", or the user's call if the user gave
// no such name.
std::string SpokenCall(const Request& request);
std::string SpokenName(std::string_view name);  // variant for callers that know only the name

// Return the error for `callers` (ascending ranks), which wait in `call` (see SpokenCall) for a rank that has left.
std::string FinishedEarly(int finished, const std::vector<int>& callers, const std::string& call);

}  // namespace hvd
