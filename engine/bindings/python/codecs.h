// SPDX-License-Identifier: Apache-2.0
// The codecs for Python: functions on addresses and counts, which run without the GIL.
#pragma once

#include <nanobind/nanobind.h>

namespace hvd_python {

void BindCodecs(nanobind::module_& module);

}  // namespace hvd_python
