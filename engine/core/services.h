// SPDX-License-Identifier: Apache-2.0
// Services that the parts of one engine share.
#pragma once

#include <atomic>
#include <cstdint>

#include "agreement/departures.h"
#include "base/config.h"
#include "base/log.h"
#include "core/completions.h"
#include "tracing/timeline.h"
#include "transport/mailbox.h"
#include "transport/neighbours.h"

namespace hvd {

// Numbers of events so far, for Describe.
struct Counters {
  std::atomic<uint64_t> direct_batches{0};
  std::atomic<uint64_t> express_runs{0};
  std::atomic<uint64_t> single_copy_batches{0};
  std::atomic<uint64_t> foreign_batches{0};
  std::atomic<uint64_t> device_batches{0};
  std::atomic<uint64_t> prompt_batches{0};
  std::atomic<uint64_t> pings{0};
};

struct Services {
  const Settings* settings;
  Neighbours* neighbours;
  Mailbox* mailbox;
  const Departures* departures;
  Completions* completions;
  Timeline* timeline;
  Counters* counters;
  Traffic* traffic;
  Log log;
};

}  // namespace hvd
