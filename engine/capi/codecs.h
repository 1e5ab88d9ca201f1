// SPDX-License-Identifier: Apache-2.0
// The codecs' part of the C API.
#pragma once

#include <hvd/engine.h>

namespace hvd {

extern const hvd_codecs kCodecsApi;

}  // namespace hvd
