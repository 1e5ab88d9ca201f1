// SPDX-License-Identifier: Apache-2.0
// Services that the parts of one engine share.
#pragma once

#include "agreement/departures.h"
#include "base/config.h"
#include "base/log.h"
#include "core/completions.h"
#include "core/counters.h"
#include "tracing/timeline.h"
#include "transport/mailbox.h"
#include "transport/neighbours.h"

namespace hvd {

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
