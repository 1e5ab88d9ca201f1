# SPDX-License-Identifier: Apache-2.0
"""Models of the examples, which the benchmarks use unchanged."""

from __future__ import annotations

from types import ModuleType

from testkit.modules import load
from testkit.places import EXAMPLES


def example(framework: str, name: str) -> ModuleType:
    """Return a module of an example in the folder of its framework."""
    return load(EXAMPLES / framework / f"{name}.py")
