// SPDX-License-Identifier: Apache-2.0
// Table of one optimizer's gradients by number: the state of each in its round, and submission of many of them at once.
#pragma once

#include <nanobind/nanobind.h>

namespace hvd_python {

void BindGradientTable(nanobind::module_& module);

}  // namespace hvd_python
