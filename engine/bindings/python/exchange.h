// SPDX-License-Identifier: Apache-2.0
// Small messages of all ranks, combined byte by byte. One call starts the exchange and another finishes it, so that a
// rank can start several and continue with the one that the other ranks answer first.
#pragma once

#include <nanobind/nanobind.h>

namespace hvd_python {

void BindExchange(nanobind::module_& module);

}  // namespace hvd_python
