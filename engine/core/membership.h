// SPDX-License-Identifier: Apache-2.0
// This rank's membership in one process set: who the others are, and what goes on among them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/applier.h"
#include "core/express_protocol.h"
#include "core/process_set.h"
#include "core/services.h"

namespace hvd {

struct Membership {
  Membership(int id, uint32_t epoch, std::vector<int> ranks, const std::vector<int64_t>& regions,
             const Surroundings& around, const Services* services)
      : set(id, epoch, std::move(ranks), regions, around), express(&set, services), applier(&set, &express, services) {}

  // Something was agreed upon and is not finished.
  bool busy() const { return express.delivering() || applier.busy(); }

  ProcessSet set;
  ExpressProtocol express;
  Applier applier;
};

}  // namespace hvd
