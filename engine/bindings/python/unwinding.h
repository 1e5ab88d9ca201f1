// SPDX-License-Identifier: Apache-2.0
// Keeps threads that Python ends inside C++ from unwinding.
#pragma once

#include <nanobind/nanobind.h>

namespace hvd_python {

void BindUnwinding(nanobind::module_& module);

}  // namespace hvd_python
