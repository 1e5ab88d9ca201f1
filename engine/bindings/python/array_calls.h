// SPDX-License-Identifier: Apache-2.0
// Collectives on simple arrays of NumPy or torch in one call each. These functions handle arguments that are clearly
// valid, and leave everything else to Python, which checks all rules and reports errors.
#pragma once

#include <nanobind/nanobind.h>

namespace hvd_python {

void BindArrayCalls(nanobind::module_& module);

}  // namespace hvd_python
