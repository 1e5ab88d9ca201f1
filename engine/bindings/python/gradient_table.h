// SPDX-License-Identifier: Apache-2.0
// The gradients of one optimizer by their numbers: how far each is in its round, and how many go to the engine at once.
#pragma once

#include <nanobind/nanobind.h>

namespace hvd_python {

void BindGradientTable(nanobind::module_& module);

}  // namespace hvd_python
