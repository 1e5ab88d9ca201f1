// SPDX-License-Identifier: Apache-2.0
// What this rank's settings say about GPUs, in the words in which a set's members talk about them.
#pragma once

#include <chrono>

#include "base/config.h"
#include "collectives/nccl_meeting.h"

namespace hvd {

// What it tells the others.
NcclPassport PassportWith(const Settings& settings);
// How long NCCL may take to launch what some ranks call later than others: at least as long as they may be late.
std::chrono::milliseconds LongestLaunch(const Settings& settings);

}  // namespace hvd
