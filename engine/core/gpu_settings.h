// SPDX-License-Identifier: Apache-2.0
// What this rank's settings say about GPUs, in the words in which a set's members talk about them.
#pragma once

#include "base/config.h"
#include "collectives/nccl_meeting.h"

namespace hvd {

// What it tells the others.
NcclPassport PassportWith(const Settings& settings);

}  // namespace hvd
