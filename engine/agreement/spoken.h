// SPDX-License-Identifier: Apache-2.0
// Operations as users know them: by what they called, not by the names under which ranks agree on them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "agreement/message.h"
#include "base/types.h"

namespace hvd {

// "allreduce 'x'", "grouped_allreduce 'g' of 2 tensors", "hvd.barrier()".
std::string Spoken(const Request& request);

// "'allreduce.loss'": by the name that the timeline shows, too, unless it is one that users never gave.
std::string SpokenCall(const Request& request);
std::string SpokenName(std::string_view name);  // where no more is known

// Rank `finished` has left, and `callers`, in ascending order, still wait for it in `call` (see SpokenCall).
std::string FinishedEarly(int finished, const std::vector<int>& callers, const std::string& call);

// "rank 3", "ranks 1, 3"; cut after a few.
std::string NameRanks(const std::vector<int>& ranks);

}  // namespace hvd
