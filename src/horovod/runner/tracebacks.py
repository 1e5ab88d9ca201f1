# SPDX-License-Identifier: Apache-2.0
"""Folds the tracebacks of ranks that only report a lost peer to one line, so that the cause is not drowned by them."""

from __future__ import annotations

_START = b"Traceback (most recent call last):"
_PEER_LOST = b"HorovodInternalError"
_NOTE = b" (traceback folded; --verbose shows it)"
_LONGEST = 1000


class TracebackFolder:
    """Lines in, lines out. A traceback is held back until its last line says what kind it is."""

    def __init__(self) -> None:
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
        return [line + _NOTE] if _PEER_LOST in line.partition(b":")[0] else held
