// SPDX-License-Identifier: Apache-2.0
// Returns the engine's errors through the C API as a status, never as an exception.
#pragma once

#include <hvd/engine.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>

#include "base/types.h"

namespace hvd {

inline void Fill(const Status& status, hvd_status* out) {
  if (!out) return;
  out->code = static_cast<int32_t>(status.code);
  out->lost_rank = status.lost_rank;
  const size_t length = std::min(status.text.size(), sizeof out->text - 1);
  std::memcpy(out->text, status.text.data(), length);
  out->text[length] = 0;
}

// Call `body`; turn an exception into a status, so that an engine error never ends the process.
template <typename Result, typename Body>
Result Guard(hvd_status* status, Result otherwise, Body body) {
  try {
    return body();
  } catch (const std::exception& error) {
    Fill(Status::Failed(std::string("the engine failed: ") + error.what()), status);
    return otherwise;
  }
}

}  // namespace hvd
