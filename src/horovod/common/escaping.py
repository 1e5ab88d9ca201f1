# SPDX-License-Identifier: Apache-2.0
"""Escaping of texts from other hosts and processes, whose control bytes could take over a terminal."""

from __future__ import annotations

import unicodedata

_LINES = "\n\t"


def escaped(text: str, keep: str = _LINES) -> str:
    """Return the text with all characters escaped that a terminal would obey instead of showing them.

    Args:
        text: Text that another host or process has sent.
        keep: Control characters that stay as they are.
    """
    if text.isprintable():  # most texts need no escaping
        return text
    return "".join(one if _is_shown(one) or one in keep else _as_escape(one) for one in text)


def _is_shown(one: str) -> bool:
    return one.isprintable() or unicodedata.category(one) == "Zs"  # a space character of any script


def _as_escape(one: str) -> str:
    return one.encode("unicode_escape").decode("ascii")
