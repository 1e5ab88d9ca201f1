// SPDX-License-Identifier: Apache-2.0
// The C API's table of codecs.
#pragma once

#include <hvd/engine.h>

namespace hvd {

extern const hvd_codecs kCodecsApi;

}  // namespace hvd
