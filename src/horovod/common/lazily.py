# SPDX-License-Identifier: Apache-2.0
"""Names of a module that come from elsewhere, and only when somebody asks: what they need may be slow, or missing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazily(module: str, sources: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__`. `sources`: "package.module" for a module, "package.module:name" for a name in one."""

    def get(name: str) -> Any:
        if name not in sources:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        source, _, attribute = sources[name].partition(":")
        found = importlib.import_module(source)
        return getattr(found, attribute) if attribute else found

    return get
