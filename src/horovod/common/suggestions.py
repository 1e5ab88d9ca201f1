# SPDX-License-Identifier: Apache-2.0
"""What a user may have meant by a misspelt name: a setting, a flag, a program."""

from __future__ import annotations

from collections.abc import Iterable

_LONGEST = 100  # characters of a name that are compared


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return "; did you mean X?" with the known name that is nearest to `name`, or an empty text if none is near.

    Args:
        name: What the user has written.
        known: The names that exist.
        cutoff: How near a name must be, from 0 (anything) to 1 (the same).
    """
    import difflib  # late: a job without mistakes does not need it

    near = difflib.get_close_matches(name[:_LONGEST], list(known), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""
