# SPDX-License-Identifier: Apache-2.0
"""Calls, the descriptions of collectives: they are values, and rules that follow from them without the engine."""

from dataclasses import FrozenInstanceError, replace
from typing import Any, cast

import pytest

from horovod.common import calls
from horovod.common.calls import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER, Call
from horovod.common.dtypes import BOOL, FLOAT32
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import Membership, global_process_set
from horovod.common.rules import PLAIN_SUM, Average, Max, Sum

SECOND_OF_TWO = Membership(cast(Any, None), 3, (1, 4), 4)


def test_calls_are_values() -> None:
    """Calls must be hashable and immutable, because compiled programs are cached by them."""
    call = Call(ALLREDUCE, name="a", op=Average)
    assert call == Call(ALLREDUCE, global_process_set, "a", Average)
    assert len({call, Call(ALLREDUCE, name="a", op=Average), replace(call, name="b")}) == 2
    with pytest.raises(FrozenInstanceError):
        call.name = "b"  # type: ignore[misc]
    assert not hasattr(call, "__dict__")


@pytest.mark.parametrize(
    ("call", "operation"),
    [
        (Call(ALLREDUCE), "allreduce"),
        (Call(ALLGATHER, grouped=True), "grouped_allgather"),
        (Call(BROADCAST, grouped=True), "grouped_broadcast"),
        (Call(ALLTOALL), "alltoall"),
        (Call(REDUCESCATTER, grouped=True), "grouped_reducescatter"),
        (Call(calls.BARRIER), "barrier"),
    ],
)
def test_names_of_operations(call: Call, operation: str) -> None:
    assert call.operation == operation


def test_reductions() -> None:
    assert calls.reduction_of(Call(ALLREDUCE, op=Max, prescale=2.0), FLOAT32, SECOND_OF_TWO) == (Max, 2.0, 1.0)
    assert calls.reduction_of(Call(REDUCESCATTER, op=Average), FLOAT32, SECOND_OF_TWO) == (Average, 1.0, 1.0)
    # A collective that only moves rows ignores the reduction, because a gradient's call changes the kind alone.
    assert calls.reduction_of(Call(ALLGATHER, op=Average), BOOL, SECOND_OF_TWO) == PLAIN_SUM
    with pytest.raises(ValueError, match="bool"):
        calls.reduction_of(Call(ALLREDUCE, op=Average), BOOL, SECOND_OF_TWO)
    with pytest.raises(HorovodInternalError, match="not Max"):
        calls.reduction_of(Call(REDUCESCATTER, op=Max), FLOAT32, SECOND_OF_TWO)


def test_roots() -> None:
    assert calls.root_of(Call(BROADCAST, root=4), SECOND_OF_TWO) == 4
    assert calls.root_of(Call(ALLREDUCE, root=4, op=Sum), SECOND_OF_TWO) == -1
    with pytest.raises(ValueError, match="root rank 0 is not among the ranks of the process set"):
        calls.root_of(Call(BROADCAST, root=0), SECOND_OF_TWO)


@pytest.mark.parametrize(
    ("kind", "shape", "result"),
    [
        (ALLREDUCE, (), ()),
        (BROADCAST, (3, 2), (3, 2)),
        (ALLGATHER, (3, 2), (6, 2)),
        (ALLTOALL, (4, 2), (4, 2)),
        (REDUCESCATTER, (5, 2), (2, 2)),
    ],
)
def test_shapes_of_results(kind: int, shape: tuple[int, ...], result: tuple[int, ...]) -> None:
    assert calls.result_shape(Call(kind), shape, SECOND_OF_TWO) == result


@pytest.mark.parametrize(("kind", "shape"), [(ALLGATHER, ()), (ALLTOALL, (3,)), (REDUCESCATTER, ())])
def test_shapes_that_cannot_be(kind: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="scalar|evenly"):
        calls.result_shape(Call(kind), shape, SECOND_OF_TWO)
