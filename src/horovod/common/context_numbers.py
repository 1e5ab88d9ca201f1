# SPDX-License-Identifier: Apache-2.0
"""Numbers under which compiled programs refer to process sets. They stay valid in later worlds, as the programs do."""

from __future__ import annotations

import itertools
import weakref

from horovod.common.context import default_context
from horovod.common.process_set import ProcessSet, global_process_set

_numbers: dict[tuple[int, ...], int] = {}
_own_numbers: weakref.WeakKeyDictionary[ProcessSet, int] = weakref.WeakKeyDictionary()
_sets: dict[int, ProcessSet] = {0: global_process_set}
_next_number = itertools.count(1)


def number_of(process_set: ProcessSet) -> int:
    """Return the number of a set; 0 is the global set.

    A set gets its number from the ranks that it was first seen with, unless another living set has that number. In an
    elastic job the ranks of a set may change later, but its number does not.
    """
    registered = default_context.sets.named_by(process_set)
    named = registered or process_set
    if named is global_process_set:
        return 0
    if named not in _own_numbers:
        ranks = tuple(named.ranks or ())
        if ranks not in _numbers or _is_alive(_sets.get(_numbers[ranks])):
            _numbers[ranks] = next(_next_number)
        _own_numbers[named] = _numbers[ranks]
    number = _own_numbers[named]
    if registered is not None or number not in _sets:  # an unregistered set does not replace a registered one
        _sets[number] = named
    return number


def set_of(number: int) -> ProcessSet:
    """Return the set that got this number last. Raise ValueError if this process has not numbered such a set."""
    if number not in _sets:
        raise ValueError(
            f"This program was compiled with a process set that this process does not have (number {number})"
        )
    return _sets[number]


def _is_alive(process_set: ProcessSet | None) -> bool:
    return process_set is not None and process_set.membership is not None
