// SPDX-License-Identifier: Apache-2.0
// ArrayReader: address, shape and dtype of a NumPy array in one call, from NumPy's public struct. Built without NumPy.
#pragma once

#include <nanobind/nanobind.h>

namespace hvd_python {

void BindArrays(nanobind::module_& module);

}  // namespace hvd_python
