# SPDX-License-Identifier: Apache-2.0
"""Rules of the collectives: averaging, scale factors, shares, splits, root ranks."""

from typing import Any

import pytest

from horovod.common import rules
from horovod.common.dtypes import ID_BY_NAME
from horovod.common.exceptions import HorovodInternalError
from horovod.common.rules import Adasum, Average, Max, Min, Product, Sum

FLOAT32 = ID_BY_NAME["float32"]
BOOL = ID_BY_NAME["bool"]


@pytest.mark.parametrize(
    ("op", "average", "expected"), [(None, None, Average), (Sum, None, Sum), (None, True, Average), (None, False, Sum)]
)
@pytest.mark.filterwarnings("ignore:average is deprecated:DeprecationWarning")
def test_resolve_op(op: int | None, average: bool | None, expected: int) -> None:
    assert rules.resolve_op(op, average) == expected


def test_average_argument_is_deprecated_and_excludes_op() -> None:
    def some_function_of_a_door() -> int:
        return rules.resolve_op(None, True)

    with pytest.warns(DeprecationWarning, match="op=Average or op=Sum") as caught:
        some_function_of_a_door()
    assert caught[0].filename == __file__
    with pytest.raises(ValueError, match="not both"):
        rules.resolve_op(Sum, False)


@pytest.mark.parametrize("op", [Average, Sum, Adasum, Min, Max, Product])
def test_operations_and_factors_pass_unchanged(op: int) -> None:
    assert rules.reduction(op, 2.0, 3.0, FLOAT32, set_id=0) == (op, 2.0, 3.0)


@pytest.mark.parametrize(
    ("op", "prescale", "dtype", "set_id", "error"),
    [
        (Average, 1.0, BOOL, 0, ValueError),
        (Sum, 0.5, BOOL, 0, ValueError),
        (Adasum, 1.0, FLOAT32, 1, NotImplementedError),
        (6, 1.0, FLOAT32, 0, ValueError),
        ("sum", 1.0, FLOAT32, 0, ValueError),
    ],
)
def test_refused_reductions(op: Any, prescale: float, dtype: int, set_id: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        rules.reduction(op, prescale, 1.0, dtype, set_id=set_id)


@pytest.mark.parametrize("op", [Adasum, Min, Max, Product, 9])
def test_reducescatter_sums_or_averages(op: int) -> None:
    with pytest.raises(HorovodInternalError, match="Average and Sum"):
        rules.scatter_reduction(op, 1.0, 1.0, FLOAT32, set_id=0)


@pytest.mark.parametrize(("rows", "size", "shares"), [(7, 3, [3, 2, 2]), (2, 4, [1, 1, 0, 0]), (0, 2, [0, 0])])
def test_shares_of_a_reducescatter(rows: int, size: int, shares: list[int]) -> None:
    assert [rules.scattered_shape((rows, 5), index, size) for index in range(size)] == [(share, 5) for share in shares]


@pytest.mark.parametrize(("splits", "expected"), [(None, [2, 2]), ([0, 3], [0, 3]), ([4, 0], [4, 0])])
def test_alltoall_splits(splits: list[int] | None, expected: list[int]) -> None:
    assert rules.alltoall_splits((4, 2), splits, size=2) == expected


@pytest.mark.parametrize(
    ("shape", "splits", "text"),
    [
        ((), None, "not a scalar"),
        ((3,), None, "3 rows do not"),
        ((3,), [1], "one split for each of the 2 ranks, not 1"),
        ((3,), [4, -1], "negative"),
        ((3,), [2, 2], "sum to 4, more than the tensor's 3 rows"),
    ],
)
def test_bad_alltoall_splits(shape: tuple[int, ...], splits: list[int] | None, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        rules.alltoall_splits(shape, splits, size=2)


def test_root_is_a_global_rank_of_the_set() -> None:
    assert rules.check_root(4, (2, 4)) == 4
    with pytest.raises(ValueError, match=r"root rank 0 is not among .* \[2, 4\]"):
        rules.check_root(0, (2, 4))
