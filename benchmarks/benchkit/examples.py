# SPDX-License-Identifier: Apache-2.0
"""The models of the examples, which are measured here as users see them there."""

from __future__ import annotations

from types import ModuleType

from testkit.modules import load
from testkit.places import EXAMPLES


def example(framework: str, name: str) -> ModuleType:
    """A module of an example, by the folder of its framework."""
    return load(EXAMPLES / framework / f"{name}.py")
