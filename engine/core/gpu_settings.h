// SPDX-License-Identifier: Apache-2.0
// This rank's GPU settings in the form in which the members of a set exchange them.
#pragma once

#include <chrono>

#include "base/config.h"
#include "collectives/nccl_meeting.h"

namespace hvd {

// Return the settings that this rank sends to the other members.
NcclPassport PassportWith(const Settings& settings);
// Return how long NCCL may take to launch an operation that some ranks call late: at least the time by which they may
// be late.
std::chrono::milliseconds LongestLaunch(const Settings& settings);

}  // namespace hvd
