# SPDX-License-Identifier: Apache-2.0
"""The numbers under which compiled programs know process sets: they outlive worlds, as the programs do."""

from __future__ import annotations

import itertools
import weakref

from horovod.common.context import default_context
from horovod.common.process_sets import ProcessSet, global_process_set

_numbers: dict[tuple[int, ...], int] = {}
_own_numbers: weakref.WeakKeyDictionary[ProcessSet, int] = weakref.WeakKeyDictionary()
_sets: dict[int, ProcessSet] = {0: global_process_set}
_next_number = itertools.count(1)


def number_of(process_set: ProcessSet) -> int:
    """0 is the global set, the others go by the ranks that they were first seen with: those of a set change with the
    workers of an elastic job. Its number does not, unless another living set has it."""
    registered = default_context.registered(process_set)
    named = registered or process_set
    if named is global_process_set:
        return 0
    if named not in _own_numbers:
        ranks = tuple(named.ranks or ())
        if ranks not in _numbers or _is_alive(_sets.get(_numbers[ranks])):
            _numbers[ranks] = next(_next_number)
        _own_numbers[named] = _numbers[ranks]
    number = _own_numbers[named]
    if registered is not None or number not in _sets:  # a set that was never registered replaces none that is
        _sets[number] = named
    return number


def set_of(number: int) -> ProcessSet:
    """The registered set that was numbered last under a number; ValueError if this process has met none."""
    if number not in _sets:
        raise ValueError(f"This program was made with a process set that this process does not know (number {number})")
    return _sets[number]


def _is_alive(process_set: ProcessSet | None) -> bool:
    return process_set is not None and process_set.membership is not None
