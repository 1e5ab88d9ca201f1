# SPDX-License-Identifier: Apache-2.0
"""Number of ranks that this process has started, for the table of the test suite."""

from __future__ import annotations

_ranks = 0


def count_ranks(number: int) -> None:
    """Add to the number of started ranks."""
    global _ranks
    _ranks += number


def ranks_started() -> int:
    return _ranks
