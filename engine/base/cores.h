// SPDX-License-Identifier: Apache-2.0
// Threads and the cores that they may run on.
#pragma once

#include <pthread.h>

#include "base/types.h"

namespace hvd {

// Whether threads of this process can be pinned to a core; otherwise the text says which cores there are.
Status CheckCore(int core);

// It runs only there from now on; false if that is refused.
bool PinThread(pthread_t thread, int core);

}  // namespace hvd
