# SPDX-License-Identifier: Apache-2.0
"""Last line of a terminal: progress bars are rewritten there, and all other output appears above it.

This module only makes texts. The writer (writers.Sink) holds `lock` from getting a text until it has queued it.
"""

from __future__ import annotations

import os
import re
import threading
import unicodedata
from collections.abc import Callable

_CLEAR = b"\r\x1b[K"
_PLAIN = "\x1b[0m"
_PARTS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|.", re.DOTALL)
_USUAL_COLUMNS = 80

Key = tuple[int, str]  # rank and stream; the bar of the lowest rank is shown


class InPlace:
    """Line for the bars of all ranks. It shows the lowest rank's bar; others follow when that one is done."""

    def __init__(self, columns: Callable[[], int]) -> None:
        self.lock = threading.Lock()
        self._columns = columns
        self._bars: dict[Key, bytes] = {}
        self._shown = b""

    def set(self, key: Key, text: bytes | None) -> None:
        """Set the text of a bar. None removes it."""
        if text is None:
            self._bars.pop(key, None)
        else:
            self._bars[key] = text

    def draw(self) -> bytes:
        """Return the bytes to write so that the line is up to date."""
        text = self._bars[min(self._bars)] if self._bars else b""
        if text == self._shown:
            return b""
        self._shown = text
        return _CLEAR + fit(text, self._columns())

    def above(self, data: bytes) -> bytes:
        """Return the bytes to write so that whole lines appear above the last line."""
        before = _CLEAR if self._shown else b""
        self._shown = b""
        return before + data + self.draw()


def of_terminal(descriptor: int) -> InPlace | None:
    """Return the last line of a terminal, or None if the descriptor is no terminal or cannot rewrite a line."""
    if not os.isatty(descriptor) or os.environ.get("TERM", "dumb") == "dumb":
        return None

    def columns() -> int:
        try:
            return os.get_terminal_size(descriptor).columns or _USUAL_COLUMNS
        except OSError:
            return _USUAL_COLUMNS

    return InPlace(columns)


def fit(text: bytes, columns: int) -> bytes:
    """Return the text cut to one row, because only the last row of a wrapped line could be rewritten."""
    room, kept = columns - 1, []
    styled = False
    for part in _PARTS.findall(text.decode(errors="replace")):
        is_style = len(part) > 1
        styled |= is_style
        room -= 0 if is_style else 2 if unicodedata.east_asian_width(part) in "WF" else 1
        if room < 0:
            break
        kept.append(part)
    return ("".join(kept) + (_PLAIN if styled else "")).encode()
