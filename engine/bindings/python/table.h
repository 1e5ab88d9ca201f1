// SPDX-License-Identifier: Apache-2.0
// What all of horovod._engine shares: the C API, errors as Python's, and waiting without the GIL.
#pragma once

#include <hvd/engine.h>
#include <nanobind/nanobind.h>

#include <string>

namespace hvd_python {

const hvd_api* Api();

void BindErrors(nanobind::module_& module);
nanobind::object ErrorOf(const hvd_status& status);  // an EngineError
[[noreturn]] void Raise(const hvd_status& status);

// Without the GIL, looking for signals every 50 ms: HVD_IN_PROGRESS once the time is over (negative: never). Throws
// what a signal handler raised; the operation then goes on.
int32_t WaitUnlocked(hvd_world* world, int64_t handle, double timeout_s, hvd_status* status);

// The same without a limit, and released at the end. `look`: it may be done, and then no other thread need run
// meanwhile.
int32_t FinishUnlocked(hvd_world* world, int64_t handle, bool look, hvd_status* status);

constexpr int kSignalPeriodMs = 50;

// What is said about a tensor whose memory was taken from an operation under way.
std::string MovedText(const std::string& name);

}  // namespace hvd_python
