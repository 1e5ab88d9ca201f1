# SPDX-License-Identifier: Apache-2.0
"""Memory for commits: two copies that are used in turn, so that the last complete one is always available."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

CopyLeaf = Callable[[Any, Any], Any]
"""Function of (old, value) that copies a framework's array, into the memory of `old` if that fits.

It returns NotImplemented for other values."""

_ATOMS = (int, float, complex, str, bytes, bool, type(None))


class Slots:
    """Copies of a value, in memory that is reused.

    `current` is the copy that was kept last. `prepare` fills another slot, which `keep` makes the current one. If a
    commit is interrupted, the commit before it is still complete. A pinned copy is not overwritten until it is
    released.
    """

    def __init__(self, copy_leaf: CopyLeaf | None = None) -> None:
        self._copy_leaf = copy_leaf
        self._slots: list[Any] = []
        self._current = -1
        self._prepared = -1
        self._pinned = -1

    @property
    def current(self) -> Any:
        return self._slots[self._current]

    @property
    def is_empty(self) -> bool:
        return self._current < 0

    def prepare(self, value: Any) -> Any:
        """Copy the value into a free slot and return the copy, which is not the current one yet."""
        busy = {self._current, self._pinned}
        spare = next((index for index in range(len(self._slots)) if index not in busy), len(self._slots))
        if spare == len(self._slots):
            self._slots.append(None)
        self._slots[spare] = copied(value, self._slots[spare], self._copy_leaf)
        self._prepared = spare
        return self._slots[spare]

    def keep(self) -> None:
        self._current, self._prepared = self._prepared, -1

    def save(self, value: Any) -> None:
        self.prepare(value)
        self.keep()

    @property
    def mark(self) -> int:
        """Value to pass to `go_back` to undo the next `keep`, unless something else was prepared since."""
        return self._current

    def go_back(self, mark: int) -> None:
        self._current, self._prepared = mark, -1

    def put(self, value: Any) -> None:
        """Keep this object itself, which no other code changes."""
        self._slots = [value]
        self._current, self._prepared, self._pinned = 0, -1, -1

    def pin(self) -> Any:
        """Return the current value, which does not change until `release`. Meanwhile commits use a third slot."""
        self._pinned = self._current
        return self.current

    def release(self) -> None:
        self._pinned = -1


def copied(value: Any, old: Any = None, copy_leaf: CopyLeaf | None = None) -> Any:
    """Return a deep copy of `value`. Reuse the arrays of `old`, an earlier copy, where shape and dtype fit."""
    return _Copier(copy_leaf).copy(value, old)


class _Copier:
    def __init__(self, copy_leaf: CopyLeaf | None) -> None:
        self._copy_leaf = copy_leaf
        # Copies by id of the original: an object that is referred to twice is copied once.
        self._done: dict[int, Any] = {}

    def copy(self, value: Any, old: Any) -> Any:
        kind = type(value)
        if kind in _ATOMS:
            return value
        if id(value) in self._done:
            return self._done[id(value)]
        if kind is np.ndarray and not value.dtype.hasobject:
            result = _copied_array(value, old)
        elif kind is dict or kind is OrderedDict:
            return self._copy_mapping(value, old)
        elif kind is list:
            return self._copy_list(value, old)
        elif kind is tuple:
            before = old if type(old) is tuple and len(old) == len(value) else (None,) * len(value)
            result = tuple(self.copy(one, former) for one, former in zip(value, before, strict=True))
        else:
            result = NotImplemented if self._copy_leaf is None else self._copy_leaf(old, value)
            if result is NotImplemented:
                result = copy.deepcopy(value, self._done)
        self._done[id(value)] = result
        return result

    def _copy_mapping(self, value: Any, old: Any) -> Any:
        result = type(value)()
        self._done[id(value)] = result
        before = old if isinstance(old, dict) else {}
        for key, one in value.items():
            result[key] = self.copy(one, before.get(key))
        attributes = getattr(value, "__dict__", None)  # a state_dict of PyTorch keeps the versions of its modules here
        if attributes:
            result.__dict__.update(copy.deepcopy(attributes))
        return result

    def _copy_list(self, value: list[Any], old: Any) -> list[Any]:
        result: list[Any] = []
        self._done[id(value)] = result
        before = old if type(old) is list else []
        for index, one in enumerate(value):
            result.append(self.copy(one, before[index] if index < len(before) else None))
        return result


def _copied_array(value: Any, old: Any) -> Any:
    if type(old) is np.ndarray and old.shape == value.shape and old.dtype == value.dtype and old.flags.writeable:
        np.copyto(old, value)
        return old
    return value.copy(order="K")


def copied_values(array: Any, old: Any) -> Any:
    """Return a copy of an array that other code owns, in the memory of `old`, an earlier copy, if that fits."""
    return _copied_array(np.asarray(array), old)


def check_arrays(found: list[Any], expected: list[Any]) -> None:
    """Raise ValueError unless the arrays of a checkpoint have the shapes of the arrays that they replace."""
    forms = [[tuple(np.shape(one)) for one in arrays] for arrays in (found, expected)]
    if forms[0] != forms[1]:
        raise ValueError(
            f"The checkpoint does not fit the state: its arrays have shapes {forms[0]}, the state's {forms[1]}"
        )
