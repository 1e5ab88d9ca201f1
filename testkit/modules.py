# SPDX-License-Identifier: Apache-2.0
"""Import of modules by file, for test modules in ranks and the examples' models, which are not on sys.path."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType


def load(path: Path | str, prefix: str = "") -> ModuleType:
    """Return the module in this file, imported only once. Its name is the prefix and the file's name."""
    return _load(str(path), prefix + Path(path).stem)


@cache
def _load(path: str, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
