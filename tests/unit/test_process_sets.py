# SPDX-License-Identifier: Apache-2.0
"""Process sets before, during and after their registration, in a world of one rank."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import horovod.numpy as hvd
from horovod.common.process_sets import Membership, check_ranks


@pytest.fixture
def static_world() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture
def dynamic_world() -> Iterator[None]:
    hvd.init(process_sets="dynamic")
    yield
    hvd.shutdown()


def membership(ranks: tuple[int, ...], my_rank: int) -> Membership:
    world: Any = None
    return Membership(world, 3, ranks, my_rank)


def test_before_registration() -> None:
    process_set = hvd.ProcessSet([3, 1])
    assert process_set.ranks == [1, 3]
    assert (process_set.process_set_id, process_set.size(), process_set.rank(), process_set.included()) == (None,) * 4
    assert str(process_set) == "ProcessSet(process_set_id=None, ranks=[1, 3], mpi_comm=None)"


def test_member_and_outsider() -> None:
    process_set = hvd.ProcessSet([1, 3])
    process_set.bind(membership((1, 3), my_rank=3))
    assert (process_set.size(), process_set.rank(), process_set.included()) == (2, 1, True)
    process_set.bind(membership((1, 3), my_rank=0))
    assert (process_set.size(), process_set.included()) == (2, False)
    with pytest.raises(ValueError, match="not a member"):
        process_set.rank()


@pytest.mark.parametrize("ranks", [[0, 1.5], ["0"], [True], 3, None])
def test_ranks_must_be_integers(ranks: Any) -> None:
    with pytest.raises(ValueError, match=r"integers|list of ranks"):
        hvd.ProcessSet(ranks)


def test_numpy_integers_are_ranks() -> None:
    assert hvd.ProcessSet(np.array([2, 0])).ranks == [0, 2]


@pytest.mark.parametrize(
    ("ranks", "text"), [([], "at least one"), ([0, 0], "twice"), ([0, 4], r"contains ranks \[4\]"), ([-1], r"\[-1\]")]
)
def test_invalid_ranks(ranks: list[int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        check_ranks(ranks, world_size=4)


def test_unnamed_operations_count_for_each_set_and_skip_named_ones() -> None:
    one, two = membership((0, 1), 0), membership((0, 2), 0)
    names = [one.full_name("allreduce", None), one.full_name("allreduce", "x"), one.full_name("broadcast", None)]
    assert names == ["allreduce.noname.1", "allreduce.x", "broadcast.noname.2"]
    assert two.full_name("allgather", None) == "allgather.noname.1"


def test_unnamed_operations_agree_after_join_though_ranks_issued_different_numbers() -> None:
    early, late = membership((0, 1), 0), membership((0, 1), 1)
    late.full_name("allreduce", None)
    early.restart_numbers()
    late.restart_numbers()
    first = early.full_name("allreduce", None)
    assert first == late.full_name("allreduce", None)
    assert first != "allreduce.noname.1"


def test_global_set_follows_the_world() -> None:
    assert hvd.global_process_set.process_set_id == 0
    hvd.init()
    assert (hvd.global_process_set.ranks, hvd.global_process_set.size()) == ([0], 1)
    hvd.shutdown()
    assert hvd.global_process_set.process_set_id == 0
    assert hvd.global_process_set.size() is None


@pytest.mark.usefixtures("static_world")
def test_dynamic_sets_need_to_be_asked_for() -> None:
    with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS"):
        hvd.add_process_set([0])
    with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS"):
        hvd.remove_process_set(hvd.ProcessSet([0]))


@pytest.mark.usefixtures("dynamic_world")
def test_a_set_of_all_ranks_exists_already() -> None:
    with pytest.raises(ValueError, match="already exists"):
        hvd.add_process_set([0])


@pytest.mark.usefixtures("dynamic_world")
def test_remove_of_global_or_unregistered_set_is_false() -> None:
    assert hvd.remove_process_set(hvd.global_process_set) is False
    assert hvd.remove_process_set(hvd.ProcessSet([0])) is False


@pytest.mark.usefixtures("static_world")
def test_unregistered_set_cannot_run_anything() -> None:
    with pytest.raises(ValueError, match="not registered"):
        hvd.allreduce(np.ones(2), process_set=hvd.ProcessSet([0]))


@pytest.mark.parametrize(
    "process_sets", [[hvd.ProcessSet([0, 1])], [hvd.ProcessSet([0])], [hvd.global_process_set], "static"]
)
def test_bad_static_sets_fail_init(process_sets: Any) -> None:
    with pytest.raises(ValueError, match=r"contains ranks \[1\]|twice|always exists|'static'"):
        hvd.init(process_sets=process_sets)
    assert not hvd.is_initialized()


def named(set_id: int | None) -> hvd.ProcessSet:
    process_set = hvd.ProcessSet([5])
    process_set.process_set_id = set_id
    return process_set


@pytest.mark.usefixtures("dynamic_world")
def test_an_id_names_the_set_that_has_it() -> None:
    assert hvd.allreduce(np.ones(2), op=hvd.Sum, process_set=named(0)).tolist() == [1, 1]
    assert (named(0).size(), named(0).rank(), named(0).included()) == (1, 0, True)
    assert hvd.remove_process_set(named(0)) is False


@pytest.mark.usefixtures("dynamic_world")
def test_a_wrong_id_is_refused_and_changes_no_other_set() -> None:
    for wrong in (named(7), named(-1)):
        with pytest.raises(ValueError, match="no process set with id"):
            hvd.allreduce(np.ones(2), process_set=wrong)
        assert (wrong.size(), wrong.rank(), wrong.included()) == (None,) * 3
        assert hvd.remove_process_set(wrong) is False
    with pytest.raises(ValueError, match="not registered"):
        hvd.allreduce(np.ones(2), process_set=named(None))
    try:
        hvd.global_process_set.process_set_id = 7
        with pytest.raises(ValueError, match="no process set with id 7"):
            hvd.allreduce(np.ones(2))
    finally:
        hvd.global_process_set.process_set_id = 0
    assert hvd.allreduce(np.ones(2), op=hvd.Sum).tolist() == [1, 1]
