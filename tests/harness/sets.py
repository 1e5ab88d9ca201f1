# SPDX-License-Identifier: Apache-2.0
"""Process sets that exist during a with block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import horovod.numpy as hvd


@contextlib.contextmanager
def process_sets(*all_ranks: Sequence[int]) -> Iterator[list[hvd.ProcessSet]]:
    """Add process sets on entry and remove them on exit, in equal order on every rank."""
    sets = [hvd.add_process_set(list(ranks)) for ranks in all_ranks]
    yield sets
    for process_set in sets:
        assert hvd.remove_process_set(process_set)
