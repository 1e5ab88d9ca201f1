// SPDX-License-Identifier: Apache-2.0
// Arrivals: hooks that only note what has arrived, for a fraction of what a Python function for each gradient would
// cost.
#pragma once

#include <nanobind/nanobind.h>

namespace hvd_python {

void BindArrivals(nanobind::module_& module);

}  // namespace hvd_python
