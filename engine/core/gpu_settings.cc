// SPDX-License-Identifier: Apache-2.0
#include "core/gpu_settings.h"

namespace hvd {

NcclPassport PassportWith(const Settings& settings) {
  NcclPassport passport{};
  passport.wish = settings.gpu_transport;
  passport.deterministic = settings.deterministic != 0;
  passport.staged_bytes = settings.gpu_staged_bytes;
  passport.slot_bytes = settings.gpu_slot_bytes;
  if (passport.wish == kGpuNccl) settings.nccl_host_id.copy(passport.host_id.data(), passport.host_id.size() - 1);
  return passport;
}

}  // namespace hvd
