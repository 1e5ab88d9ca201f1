# SPDX-License-Identifier: Apache-2.0
"""Module attributes that are imported on first use, because what they import may be slow or missing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazily(module: str, sources: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` function for a module.

    Args:
        module: Name of the module, for the error text.
        sources: For each attribute, "package.module" for a module or "package.module:name" for a name in it.
    """

    def get(name: str) -> Any:
        if name not in sources:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        source, _, attribute = sources[name].partition(":")
        found = importlib.import_module(source)
        return getattr(found, attribute) if attribute else found

    return get
