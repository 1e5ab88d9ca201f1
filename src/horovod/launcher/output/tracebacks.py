# SPDX-License-Identifier: Apache-2.0
"""Folding of tracebacks that would hide the cause: those about a lost peer, and repeated ones."""

from __future__ import annotations

_START = b"Traceback (most recent call last):"
_PEER_LOST = b"HorovodInternalError"
_NOTE = b" (traceback folded; --verbose shows it)"
_SAME_NOTE = b" (the same traceback as of rank %d, folded; --verbose shows it)"
_LONGEST = 1000
_MOST_KEPT = 100


class ShownTracebacks:
    """Record of the rank that first showed each traceback, shared by all ranks of a job."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[bytes, ...], int] = {}

    def first_rank(self, lines: list[bytes], rank: int) -> int:
        """Return the rank that had this traceback first, which may be this one."""
        if len(self._ranks) >= _MOST_KEPT:
            self._ranks.clear()
        return self._ranks.setdefault(tuple(lines), rank)


class TracebackFolder:
    """Filter for the lines of one rank. It holds a traceback back until its last line shows what kind it is."""

    def __init__(self, rank: int, shown: ShownTracebacks) -> None:
        self._rank = rank
        self._shown = shown
        self._held: list[bytes] = []

    def feed(self, lines: list[bytes]) -> list[bytes]:
        shown: list[bytes] = []
        for line in lines:
            shown += self._next(line)
        return shown

    def flush(self) -> list[bytes]:
        held, self._held = self._held, []
        return held

    def _next(self, line: bytes) -> list[bytes]:
        if line == _START:
            held = self.flush()
            self._held = [line]
            return held
        if not self._held:
            return [line]
        self._held.append(line)
        if line[:1] in (b" ", b"\t") and len(self._held) < _LONGEST:
            return []
        held = self.flush()
        if _PEER_LOST in line.partition(b":")[0]:
            return [line + _NOTE]
        first = self._shown.first_rank(held, self._rank)
        return held if first == self._rank else [line + _SAME_NOTE % first]
