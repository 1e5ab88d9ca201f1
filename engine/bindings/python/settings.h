// SPDX-License-Identifier: Apache-2.0
// The engine's settings from and for Python, by the names of hvd/settings.h.
#pragma once

#include <hvd/engine.h>
#include <nanobind/nanobind.h>

namespace hvd_python {

void BindSettings(nanobind::module_& module);

// The defaults, overruled by what is given, which keeps the texts alive that the result points to. KeyError and
// ValueError name the setting.
hvd_settings ReadSettings(const nanobind::dict& given);

}  // namespace hvd_python
