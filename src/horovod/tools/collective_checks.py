# SPDX-License-Identifier: Apache-2.0
"""Checks that `hvd test` runs on every rank: each collective on each dtype, compared with NumPy.

Every rank can compute the input of every other rank, so the expected result needs no communication.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import horovod.numpy as hvd
from horovod.common.dtypes import ID_BY_NAME
from horovod.tools.results import FAIL, NOT_APPLICABLE, PASS, Check

Array = npt.NDArray[Any]

# Test one element, less than a chunk, and several chunks. No length is a multiple of a vector's length.
_LENGTHS = (1, 1237, 200_003)
_ADASUM_DTYPES = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class _Case:
    """One dtype in the current world. `arrays` holds the input of every rank."""

    name: str
    dtype: np.dtype[Any]
    arrays: list[Array]

    @property
    def mine(self) -> Array:
        return self.arrays[hvd.rank()]

    @property
    def wide(self) -> list[Array]:
        """Return the inputs in the type in which the engine adds: float32 for narrower floats, integers unchanged."""
        is_narrow = self.dtype.kind not in "iub" and self.dtype.itemsize < 4
        return [array.astype(np.float32) for array in self.arrays] if is_narrow else self.arrays


def check_all() -> list[Check]:
    """Return the results of all checks on this rank, in one order on all ranks."""
    checks = [check_one(operation, name) for name in ID_BY_NAME for operation in OPERATIONS]
    return checks + [Check(operation, "", *_outcome(run)) for operation, run in MEETINGS.items()]


def check_one(operation: str, name: str) -> Check:
    dtype = find_dtype(name)
    if dtype is None:
        return Check(operation, name, NOT_APPLICABLE, "ml_dtypes is not installed")
    if (operation == "average" and name == "bool") or (operation == "adasum" and name not in _ADASUM_DTYPES):
        return Check(operation, name, NOT_APPLICABLE, "refused by design")
    return Check(operation, name, *_outcome(lambda: _check_lengths(OPERATIONS[operation], name, dtype)))


def _outcome(run: Callable[[], None]) -> tuple[str, str]:
    try:
        run()
    except Exception as error:
        return FAIL, f"{type(error).__name__}: {str(error).strip()[:2000]}"
    return PASS, ""


def _check_lengths(run: Callable[[_Case], None], name: str, dtype: np.dtype[Any]) -> None:
    failures = []
    for length in _LENGTHS:
        arrays = [_values(dtype, length, rank) for rank in range(hvd.size())]
        try:
            run(_Case(name, dtype, arrays))
        except AssertionError as error:  # record the failure and go on, because the other ranks go on too
            failures.append(f"{length} elements: {str(error).strip()}")
    assert not failures, failures[0]


def find_dtype(name: str) -> np.dtype[Any] | None:
    """Return the NumPy dtype, or None if NumPy lacks it and ml_dtypes is not installed."""
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        found: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    except (ImportError, AttributeError):
        return None
    return found


def _values(dtype: np.dtype[Any], length: int, rank: int) -> Array:
    low = 0 if dtype.kind in "ub" else -3
    return np.random.default_rng(rank).integers(low, 3, length, endpoint=True).astype(dtype)


def _equal(result: Array, expected: Array, tolerance: float = 0.0) -> None:
    assert result.dtype == expected.dtype, f"dtype {result.dtype} instead of {expected.dtype}"
    assert result.shape == expected.shape, f"shape {result.shape} instead of {expected.shape}"
    if expected.dtype.kind in "iub":
        np.testing.assert_array_equal(result, expected)
        return
    left, right = result.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance)


def _total(case: _Case, combine: Callable[[Array, Array], Array]) -> Array:
    # Integers wrap around in NumPy as in the engine.
    with np.errstate(over="ignore"):
        return functools.reduce(combine, case.wide).astype(case.dtype)


def _check_sum(case: _Case) -> None:
    expected = _total(case, np.logical_or if case.name == "bool" else np.add)
    _equal(hvd.allreduce(case.mine, op=hvd.Sum), expected)
    in_place = case.mine.copy()
    assert hvd.allreduce_(in_place, op=hvd.Sum) is in_place
    _equal(in_place, expected)


def _check_average(case: _Case) -> None:
    expected, tolerance = _average(case)
    _equal(hvd.allreduce(case.mine), expected, tolerance)


def _average(case: _Case) -> tuple[Array, float]:
    """Return the average and a tolerance. Integers are truncated toward zero; floats may differ in the last bit."""
    mean = functools.reduce(np.add, [array.astype(np.float64) for array in case.arrays]) / len(case.arrays)
    if case.dtype.kind in "iu":
        return np.trunc(mean).astype(case.dtype), 0.0
    return mean.astype(case.dtype), _spacing(case.dtype)


def _spacing(dtype: np.dtype[Any]) -> float:
    """Return the distance from 1 to the next number of a type. NumPy's finfo does not know ml_dtypes."""
    spacing = 1.0
    while float(np.asarray(1 + spacing / 2).astype(dtype).astype(np.float64)) > 1:
        spacing /= 2
    return spacing


def _check_min(case: _Case) -> None:
    _equal(hvd.allreduce(case.mine, op=hvd.Min), _total(case, np.minimum))


def _check_max(case: _Case) -> None:
    _equal(hvd.allreduce(case.mine, op=hvd.Max), _total(case, np.maximum))


def _check_product(case: _Case) -> None:
    combine = np.logical_and if case.name == "bool" else np.multiply
    _equal(hvd.allreduce(case.mine, op=hvd.Product), _total(case, combine))


def _check_adasum(case: _Case) -> None:
    """Check two properties: equal gradients return themselves, orthogonal gradients return their sum."""
    same = case.arrays[0]
    tolerance = 8 * _spacing(case.dtype)
    _equal(hvd.allreduce(same, op=hvd.Adasum), same, tolerance)
    orthogonal = np.zeros(hvd.size() * 5, case.dtype)
    orthogonal[hvd.rank() :: hvd.size()] = 2
    _equal(hvd.allreduce(orthogonal, op=hvd.Adasum), np.full(hvd.size() * 5, 2).astype(case.dtype), tolerance)


def _check_allgather(case: _Case) -> None:
    parts = [array[: len(array) - rank] for rank, array in enumerate(case.arrays)]  # parts of different lengths
    _equal(hvd.allgather(parts[hvd.rank()]), np.concatenate(parts))


def _check_broadcast(case: _Case) -> None:
    root = hvd.size() - 1
    _equal(hvd.broadcast(case.mine, root_rank=root), case.arrays[root])


def _check_alltoall(case: _Case) -> None:
    # Send equal shares to all ranks, and the rest to rank 0.
    size, rank, rows = hvd.size(), hvd.rank(), len(case.mine)
    splits = [rows // size if index else rows - rows // size * (size - 1) for index in range(size)]
    starts = np.concatenate([[0], np.cumsum(splits)])
    output, received = hvd.alltoall(case.mine, splits=splits)
    _equal(output, np.concatenate([array[starts[rank] : starts[rank + 1]] for array in case.arrays]))
    assert list(received) == [splits[rank]] * size, f"received splits {list(received)}"


def _share(array: Array) -> Array:
    return np.array_split(array, hvd.size())[hvd.rank()]  # the first ranks get one more row, as in a reducescatter


def _check_reducescatter(case: _Case) -> None:
    expected = _total(case, np.logical_or if case.name == "bool" else np.add)
    _equal(hvd.reducescatter(case.mine, op=hvd.Sum), _share(expected))


def _check_grouped(case: _Case) -> None:
    """Check the grouped forms of allreduce, allgather and reducescatter."""
    expected = _total(case, np.logical_or if case.name == "bool" else np.add)
    pair = [case.mine, case.mine[:1]]
    for result, whole in zip(hvd.grouped_allreduce(pair, op=hvd.Sum), (expected, expected[:1]), strict=True):
        _equal(result, whole)
    gathered = hvd.grouped_allgather(pair)
    _equal(gathered[0], np.concatenate(case.arrays))
    _equal(gathered[1], np.concatenate([array[:1] for array in case.arrays]))
    scattered = hvd.grouped_reducescatter(pair, op=hvd.Sum)
    _equal(scattered[0], _share(expected))
    _equal(scattered[1], _share(expected[:1]))


def _check_asynchronous(case: _Case) -> None:
    """Check several concurrent operations that are finished in reverse order."""
    expected = _total(case, np.maximum)
    handles = [hvd.allreduce_async(case.mine, op=hvd.Max, name=f"{case.name}.{index}") for index in range(4)]
    for handle in reversed(handles):
        _equal(hvd.synchronize(handle), expected)


OPERATIONS: dict[str, Callable[[_Case], None]] = {
    "average": _check_average,
    "sum": _check_sum,
    "min": _check_min,
    "max": _check_max,
    "product": _check_product,
    "adasum": _check_adasum,
    "allgather": _check_allgather,
    "broadcast": _check_broadcast,
    "alltoall": _check_alltoall,
    "reducescatter": _check_reducescatter,
    "grouped": _check_grouped,
    "async": _check_asynchronous,
}


def _check_objects() -> None:
    thing = {"rank": hvd.rank(), "text": "π" * 1000}
    assert hvd.broadcast_object(thing, root_rank=0, name="object")["rank"] == 0
    assert [item["rank"] for item in hvd.allgather_object(thing, name="objects")] == list(range(hvd.size()))


def _check_point_to_point() -> None:
    """Check a ring in which every rank sends to the next and receives from the previous rank."""
    size, rank = hvd.size(), hvd.rank()
    if size == 1:
        return
    received = np.zeros(5000, np.int64)
    sending = hvd.send_async(np.full(5000, rank), (rank + 1) % size)
    hvd.recv(received, (rank - 1) % size)
    hvd.synchronize(sending)
    _equal(received, np.full(5000, (rank - 1) % size))


def _check_join() -> None:
    """Check that rank 0 joins and contributes zeros to an allreduce of the other ranks."""
    if hvd.rank() > 0:
        result = hvd.allreduce(np.ones(3), op=hvd.Sum, name="after rank 0 has joined")
        _equal(result, np.full(3, float(hvd.size() - 1)))
    last = hvd.join()
    assert 0 <= last < hvd.size(), f"join returned {last}"


MEETINGS: dict[str, Callable[[], None]] = {
    "barrier": lambda: hvd.barrier(),
    "objects": _check_objects,
    "send/recv": _check_point_to_point,
    "join": _check_join,
}
