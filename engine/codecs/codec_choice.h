// SPDX-License-Identifier: Apache-2.0
// Access to the flavour of the codecs in use.
#pragma once

#include "codecs/codecs_table.h"

namespace hvd {

const Codecs& CurrentCodecs();

}  // namespace hvd
