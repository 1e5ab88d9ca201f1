// SPDX-License-Identifier: Apache-2.0
// Threads that Python ends inside C++: they stay where they are.
#pragma once

#include <nanobind/nanobind.h>

namespace hvd_python {

void BindUnwinding(nanobind::module_& module);

}  // namespace hvd_python
