# SPDX-License-Identifier: Apache-2.0
"""The six HOROVOD_* variables that hold a process's rank and size, also within its host and across hosts.

When the elastic driver starts a worker, it sets them to the rank that it plans at that moment, and marks them as
planned. hvd.init() replaces them by the worker's real rank and removes the mark. Until then scripts may read them, for
example to choose a GPU, but this package does not: see `known`. The functions are pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

_FIELDS = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
NAMES = tuple(f"HOROVOD_{field.upper()}" for field in _FIELDS)
PLANNED = "_HOROVOD_PLANNED_PLACE"


class HasPlace(Protocol):
    """Object with the six numbers, for example a SlotInfo or a Topology."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def local_rank(self) -> int: ...

    @property
    def local_size(self) -> int: ...

    @property
    def cross_rank(self) -> int: ...

    @property
    def cross_size(self) -> int: ...


def variables(place: HasPlace) -> dict[str, str]:
    """Return the variables for a process with these numbers."""
    return {name: str(getattr(place, field)) for name, field in zip(NAMES, _FIELDS, strict=True)}


def planned(place: HasPlace) -> dict[str, str]:
    """Return the variables for an elastic worker whose numbers may still change."""
    return {**variables(place), PLANNED: "1"}


def known(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment without numbers that are only planned."""
    if not environ.get(PLANNED):
        return environ
    return {name: value for name, value in environ.items() if name not in NAMES}
