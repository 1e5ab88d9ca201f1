# SPDX-License-Identifier: Apache-2.0
"""Waiting until a file can be read or written.

select.select() fails for descriptors above 1,023, which a large job has. So the package does not use it.
"""

from __future__ import annotations

import selectors
from typing import Protocol


class HasDescriptor(Protocol):
    """A file, a socket, or anything else with a descriptor."""

    def fileno(self) -> int: ...


def is_readable(source: int | HasDescriptor, limit_s: float | None = None) -> bool:
    """Wait until a read would not block. Return False if the limit passed first (None: no limit)."""
    return bool(_ready(source, selectors.EVENT_READ, limit_s))


def is_writable(target: int | HasDescriptor, limit_s: float | None = None) -> bool:
    """Wait until a write would not block. Return False if the limit passed first (None: no limit)."""
    return bool(_ready(target, selectors.EVENT_WRITE, limit_s))


def readable_and_writable(connection: int | HasDescriptor, limit_s: float) -> tuple[bool, bool]:
    """Wait until a read or a write would not block. Return (can read, can write)."""
    events = _ready(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, limit_s)
    return bool(events & selectors.EVENT_READ), bool(events & selectors.EVENT_WRITE)


def _ready(file: int | HasDescriptor, events: int, limit_s: float | None) -> int:
    with selectors.PollSelector() as selector:
        selector.register(file, events)
        found = selector.select(None if limit_s is None else max(0.0, limit_s))
    return found[0][1] if found else 0
