// SPDX-License-Identifier: Apache-2.0
// Pinning of threads to processor cores.
#pragma once

#include <pthread.h>

#include "base/types.h"

namespace hvd {

// Return OK if threads of this process can be pinned to `core`; otherwise the text names the cores that are available.
Status CheckCore(int core);

// Pin `thread` to `core`. Return false if the kernel refuses.
bool PinThread(pthread_t thread, int core);

}  // namespace hvd
