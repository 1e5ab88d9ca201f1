// SPDX-License-Identifier: Apache-2.0
// The flavour of the codecs that is in use.
#pragma once

#include "codecs/codecs_table.h"

namespace hvd {

const Codecs& CurrentCodecs();

}  // namespace hvd
