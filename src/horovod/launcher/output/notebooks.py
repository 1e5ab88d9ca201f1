# SPDX-License-Identifier: Apache-2.0
"""Notebook support: detection, and the text of cells, which workers need to show lines in tracebacks."""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

_MOST_CHARACTERS = 1 << 20


_FILE = re.compile(r'File "([^"\n]+)"')


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None


def in_notebook() -> bool:
    """Return True if this process is the kernel of a notebook (Jupyter, Colab, an editor)."""
    return getattr(_shell(), "kernel", None) is not None


def cell_sources() -> dict[str, list[str]]:
    """Return by name the lines of all code outside files (cells, code typed at a prompt), newest first."""
    found: dict[str, list[str]] = {}
    room = _MOST_CHARACTERS
    for name, entry in reversed(list(linecache.cache.items())):
        if len(entry) != 4 or os.path.exists(name):
            continue
        lines = list(entry[2])
        room -= sum(map(len, lines))
        if room < 0:
            break
        found[name] = lines
    return found


def with_cell_names(text: str) -> str:
    """Return a traceback with names such as "Cell In[3]" in place of files that do not exist."""
    name_of = getattr(getattr(_shell(), "compile", None), "format_code_name", None)
    if name_of is None:
        return text

    def shown(match: re.Match[str]) -> str:
        words = name_of(match[1])
        return " ".join(words) if words is not None else match[0]

    return _FILE.sub(shown, text)


def learn_sources(sources: Mapping[str, list[str]]) -> None:
    """Register cell texts in a worker, so that tracebacks show their lines."""
    for name, lines in sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
