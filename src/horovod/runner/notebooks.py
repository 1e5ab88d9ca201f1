# SPDX-License-Identifier: Apache-2.0
"""Notebooks: whether this is one, and the text of its cells, which workers need for showing lines in tracebacks."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Mapping

_MOST_CHARACTERS = 1 << 20


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook (of Jupyter, Colab, an editor)."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return getattr(shell, "kernel", None) is not None


def cell_sources() -> dict[str, list[str]]:
    """Lines by file name of all code that is not in a file: cells, and what was typed at a prompt. The newest first."""
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


def learn_sources(sources: Mapping[str, list[str]]) -> None:
    """In a worker: tracebacks find them as if they were files."""
    for name, lines in sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
