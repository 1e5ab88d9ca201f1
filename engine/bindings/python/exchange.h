// SPDX-License-Identifier: Apache-2.0
// Small messages of all ranks, combined byte for byte: begun by one call and finished by another, so that a rank can
// begin several and go on with whichever the other ranks answer first.
#pragma once

#include <nanobind/nanobind.h>

namespace hvd_python {

void BindExchange(nanobind::module_& module);

}  // namespace hvd_python
