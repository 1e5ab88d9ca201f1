// SPDX-License-Identifier: Apache-2.0
// The engine's settings for Python, by their names in hvd/settings.h.
#pragma once

#include <hvd/engine.h>
#include <nanobind/nanobind.h>

namespace hvd_python {

void BindSettings(nanobind::module_& module);

// Return the defaults, overridden by `given`, which must outlive the result because the result points to its strings.
// KeyError and ValueError name the setting.
hvd_settings ReadSettings(const nanobind::dict& given);

}  // namespace hvd_python
