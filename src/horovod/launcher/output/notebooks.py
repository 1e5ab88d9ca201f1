# SPDX-License-Identifier: Apache-2.0
"""Notebooks: whether this is one, and the text of its cells, which workers need for showing lines in tracebacks."""

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
    """Whether this process is the kernel of a notebook (of Jupyter, Colab, an editor)."""
    return getattr(_shell(), "kernel", None) is not None


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


def with_cell_names(text: str) -> str:
    """A traceback that says "Cell In[3]", as IPython does, where it names a file that is none."""
    name_of = getattr(getattr(_shell(), "compile", None), "format_code_name", None)
    if name_of is None:
        return text

    def shown(match: re.Match[str]) -> str:
        words = name_of(match[1])
        return " ".join(words) if words is not None else match[0]

    return _FILE.sub(shown, text)


def learn_sources(sources: Mapping[str, list[str]]) -> None:
    """In a worker: tracebacks find them as if they were files."""
    for name, lines in sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
