// SPDX-License-Identifier: Apache-2.0
// Hooks that only record which gradients have arrived, at a fraction of the cost of a Python function for each
// gradient.
#pragma once

#include <nanobind/nanobind.h>

namespace hvd_python {

void BindArrivals(nanobind::module_& module);

}  // namespace hvd_python
