# SPDX-License-Identifier: Apache-2.0
"""The table: the modules whose names have docstrings here, and the texts of each framework."""

from __future__ import annotations

from testkit.docstrings import numpy_texts, shared, torch_texts
from testkit.docstrings.arguments import ARGUMENTS as ARGUMENTS
from testkit.docstrings.entry import Entry

# Modules with a public __all__, and the texts and words of each.
MODULES = {
    "horovod.common.door": "shared",
    "horovod.torch": "torch",
    "horovod.torch.elastic": "torch",
    "horovod.numpy": "numpy",
    "horovod.numpy.elastic": "numpy",
}

# Public names that a function makes, by the module and path of the definition.
INNER: dict[tuple[str, str], tuple[str, str]] = {}

# By framework and public name. A name without an entry in its framework has that of "shared".
TABLES: dict[str, dict[str, Entry]] = {
    "shared": shared.TABLE,
    "torch": torch_texts.TABLE,
    "numpy": numpy_texts.TABLE,
}
