// SPDX-License-Identifier: Apache-2.0
// The numbers of the C API for Python: IntEnums of kinds, reductions and dtypes, and the dtypes' names and sizes.
#pragma once

#include <nanobind/nanobind.h>

namespace hvd_python {

void BindVocabulary(nanobind::module_& module);

}  // namespace hvd_python
