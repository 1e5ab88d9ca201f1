# SPDX-License-Identifier: Apache-2.0
"""Suggestions for a misspelt name of a setting, a flag or a program."""

from __future__ import annotations

from collections.abc import Iterable

_LONGEST = 100  # characters of a name to compare


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return "; did you mean X?" with the known name that is nearest to `name`, or an empty text if none is near.

    Args:
        name: The name that the user has written.
        known: The names that exist.
        cutoff: How similar a name must be, from 0 (any name) to 1 (equal).
    """
    import difflib  # imported late because most jobs do not need it

    near = difflib.get_close_matches(name[:_LONGEST], list(known), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""
