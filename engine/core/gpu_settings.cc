// SPDX-License-Identifier: Apache-2.0
#include "core/gpu_settings.h"

#include <algorithm>

namespace hvd {
namespace {

constexpr std::chrono::minutes kLongestLaunch(5);

}  // namespace

NcclPassport PassportWith(const Settings& settings) {
  NcclPassport passport{};
  passport.wish = settings.gpu_transport;
  passport.deterministic = settings.deterministic != 0;
  passport.staged_bytes = settings.gpu_staged_bytes;
  passport.slot_bytes = settings.gpu_slot_bytes;
  if (passport.wish == kGpuNccl) settings.nccl_host_id.copy(passport.host_id.data(), passport.host_id.size() - 1);
  return passport;
}

std::chrono::milliseconds LongestLaunch(const Settings& settings) {
  return std::max<std::chrono::milliseconds>(kLongestLaunch, std::chrono::milliseconds(settings.stall_shutdown_ms));
}

}  // namespace hvd
