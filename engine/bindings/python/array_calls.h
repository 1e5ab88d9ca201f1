// SPDX-License-Identifier: Apache-2.0
// Collectives on plain arrays of NumPy or torch in one call each. They take what is plainly right and leave the rest to
// Python, which knows every rule and says what is wrong.
#pragma once

#include <nanobind/nanobind.h>

namespace hvd_python {

void BindArrayCalls(nanobind::module_& module);

}  // namespace hvd_python
