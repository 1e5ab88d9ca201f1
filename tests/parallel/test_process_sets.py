# SPDX-License-Identifier: Apache-2.0
"""Process sets: static, dynamic, overlapping, disjoint and concurrent; the ranks that may use them and the errors."""

import threading

import numpy as np
import pytest
from harness.arrays import OPS, check_equal, inputs, reduced
from harness.sets import process_sets
from harness.worlds import FOURS, SEVERAL, SMALL_CHUNKS, TCP, World, on_all_ranks

import horovod.numpy as hvd

OVERLAPPING = ((0, 1), (1, 2, 3), (0, 3), (2,))


def check_everything_in(process_set, dtype="float32"):
    """Run every collective once among the members, and compare with NumPy over their inputs."""
    ranks, index = process_set.ranks, process_set.rank()
    everyone = inputs((23, 17), dtype, seed=process_set.process_set_id)
    arrays = [everyone[rank] for rank in ranks]
    own = everyone[hvd.rank()].copy()
    for op, number in OPS.items():
        check_equal(hvd.allreduce(own, op=number, process_set=process_set), reduced(arrays, op))
    check_equal(hvd.allgather(own[: index + 1], process_set=process_set), gathered(arrays))
    for root in ranks:
        check_equal(hvd.broadcast(own, root, process_set=process_set), everyone[root])
    scattered = hvd.reducescatter(own, op=hvd.Sum, process_set=process_set)
    check_equal(scattered, np.array_split(reduced(arrays, "Sum"), len(ranks))[index])
    output, received = hvd.alltoall(own[: len(ranks)], splits=[1] * len(ranks), process_set=process_set)
    check_equal(output, np.stack([array[index] for array in arrays]))
    assert received.tolist() == [1] * len(ranks)
    hvd.barrier(process_set)


def gathered(arrays):
    return np.concatenate([array[: index + 1] for index, array in enumerate(arrays)])


@on_all_ranks(*FOURS)
def test_overlapping_sets_one_after_the_other():
    with process_sets(*OVERLAPPING) as sets:
        for process_set in sets:
            assert process_set.included() == (hvd.rank() in process_set.ranks)
            if process_set.included():
                assert process_set.size() == len(process_set.ranks)
                check_everything_in(process_set, "int32")


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@on_all_ranks(*SEVERAL)
def test_every_collective_among_the_even_ranks(dtype):
    with process_sets(range(0, hvd.size(), 2)) as (even,):
        if even.included():
            check_everything_in(even, dtype)


@on_all_ranks(*FOURS)
def test_disjoint_sets_and_the_global_one_from_several_threads():
    """All sets use equal names, because a name belongs to its set."""
    rounds = 15
    with process_sets((0, 1), (2, 3), (0, 2), (1, 3)) as sets:
        groups = [*(process_set for process_set in sets if process_set.included()), hvd.global_process_set]
        troubles = []

        def work(process_set):
            try:
                for index in range(rounds):
                    value = np.full(200 + index, float(hvd.rank() + index))
                    result = hvd.allreduce(value, op=hvd.Sum, name=f"shared{index}", process_set=process_set)
                    total = float(sum(rank + index for rank in process_set.ranks))
                    check_equal(result, np.full(200 + index, total))
            except BaseException as error:
                troubles.append(error)

        threads = [threading.Thread(target=work, args=[process_set]) for process_set in groups]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not troubles


@on_all_ranks(*FOURS)
def test_a_set_need_not_wait_for_another():
    """Ranks 2 and 3 finish their work before rank 0 has started the global operation."""
    with process_sets((2, 3)) as (pair,):
        if pair.included():
            handle = hvd.allreduce_async(np.ones(500), op=hvd.Sum, name="everyone")
            for _ in range(10):
                hvd.allreduce(np.ones(500), process_set=pair)
            hvd.broadcast_object("go", 2, name="go")
        else:
            hvd.broadcast_object(None, 2, name="go")  # only now, so that "everyone" was pending until here
            handle = hvd.allreduce_async(np.ones(500), op=hvd.Sum, name="everyone")
        check_equal(hvd.synchronize(handle), np.full(500, 4.0))


@on_all_ranks(*SEVERAL)
def test_ids_are_used_again():
    with process_sets([0], [1]) as (first, second):
        ids = first.process_set_id, second.process_set_id
        assert 0 < ids[0] < ids[1]
    assert first.process_set_id is None
    assert first.size() is None
    with process_sets([1]) as (third,):
        assert third.process_set_id in ids
        if third.included():
            check_equal(hvd.allreduce(np.ones(2), process_set=third), np.ones(2))
    return ids


@on_all_ranks("shm2")
def test_old_programs_find_the_ranks_of_each_set_by_its_id():
    everyone = list(range(hvd.size()))
    with process_sets([1]) as (one,):
        found = hvd.mpi_ops._basics._get_process_set_ids_and_ranks()
        assert found == {0: everyone, one.process_set_id: [1]}
    assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {0: everyone}


@on_all_ranks("shm2", "tcp4", "hosts4", limit_s=50)
def test_many_sets_come_and_go():
    """Nothing that a set needs may leak, and no set may use what another set has cached."""
    for index in range(30):
        ranks = [rank for rank in range(hvd.size()) if (index >> rank) & 1] or [0]
        if len(ranks) == hvd.size():
            continue
        with process_sets(ranks) as (process_set,):
            if process_set.included():
                result = hvd.allreduce(np.full(9, index), op=hvd.Sum, name="same", process_set=process_set)
                check_equal(result, np.full(9, index * len(ranks)))


@on_all_ranks(*SEVERAL)
def test_who_is_no_member_is_refused():
    with process_sets([0]) as (alone,):
        if hvd.rank() == 0:
            check_equal(hvd.allreduce(np.ones(2), process_set=alone), np.ones(2))
            assert alone.rank() == 0
        else:
            with pytest.raises(ValueError, match=f"Rank {hvd.rank()} is not a member of ProcessSet"):
                hvd.allreduce(np.ones(2), process_set=alone)
            with pytest.raises(ValueError, match="not a member"):
                alone.rank()
    with pytest.raises(ValueError, match="is not registered"):
        hvd.allreduce(np.ones(2), process_set=alone)


@on_all_ranks("shm2")
def test_a_set_is_found_by_its_id_and_not_by_its_ranks():
    with process_sets([0]) as (alone,):
        twin, stranger = hvd.ProcessSet([1]), hvd.ProcessSet([0])
        twin.process_set_id = alone.process_set_id
        assert (twin.size(), twin.included()) == (1, hvd.rank() == 0)
        if hvd.rank() == 0:
            check_equal(hvd.allreduce(np.ones(2), process_set=twin), np.ones(2))
        else:
            with pytest.raises(ValueError, match="not a member"):
                hvd.allreduce(np.ones(2), process_set=twin)
        with pytest.raises(ValueError, match="is not registered"):
            hvd.allreduce(np.ones(2), process_set=stranger)
        number, alone.process_set_id = alone.process_set_id, 99
        with pytest.raises(ValueError, match="no process set with id 99"):
            hvd.allreduce(np.ones(2), process_set=alone)
        alone.process_set_id = number
        if hvd.rank() == 0:
            check_equal(hvd.allreduce(np.ones(2), process_set=alone), np.ones(2))
        alone.ranks = [1]
        with pytest.raises(ValueError, match="registered already"):
            hvd.add_process_set(alone)
        check_equal(hvd.allreduce(np.ones(2), op=hvd.Sum), np.full(2, 2.0))
    assert (twin.size(), twin.included()) == (None, None)
    with pytest.raises(ValueError, match="no process set with id"):
        hvd.allreduce(np.ones(2), process_set=twin)


@on_all_ranks(*SEVERAL)
def test_root_is_a_global_rank_and_must_be_a_member():
    with process_sets([1]) as (one,):
        if one.included():
            check_equal(hvd.broadcast(np.ones(2), 1, process_set=one), np.ones(2))
            with pytest.raises(ValueError, match="root rank 0 is not among"):
                hvd.broadcast(np.ones(2), 0, process_set=one)


@on_all_ranks()
def test_a_set_that_exists_cannot_be_added_again():
    with pytest.raises(ValueError, match="already exists"):
        hvd.add_process_set(list(range(hvd.size())))
    if hvd.size() > 1:
        with process_sets([0]), pytest.raises(ValueError, match="already exists"):
            hvd.add_process_set([0])
    assert not hvd.remove_process_set(hvd.global_process_set)
    for wrong in ([0, 0], [hvd.size()], []):
        with pytest.raises(ValueError, match="process set"):
            hvd.add_process_set(wrong)


@on_all_ranks("hosts3", *FOURS)
def test_objects_in_a_set():
    with process_sets([1, 0]) as (pair,):
        if pair.included():
            assert hvd.allgather_object(hvd.rank(), process_set=pair) == [0, 1]
            assert hvd.broadcast_object(hvd.rank(), 1, process_set=pair) == 1


@on_all_ranks("hosts3", *FOURS)
def test_objects_without_names_in_two_sets_at_once():
    """A member waits for another member of its set, which first has to finish a call in the other set."""
    with process_sets([0, 1], [1, 2]) as (first, second):
        me, found = hvd.rank(), {}

        def broadcast(of_set, root):
            found[of_set] = hvd.broadcast_object([root] if me == root else None, root, process_set=of_set)

        if me == 0:
            broadcast(first, 0)
        elif me == 2:
            broadcast(second, 2)
        elif me == 1:
            other = threading.Thread(target=broadcast, args=(second, 2))
            other.start()
            broadcast(first, 0)
            other.join()
        assert found == {it: [it.ranks[0] if it is first else 2] for it in (first, second) if it.included()}


@on_all_ranks("hosts3", *FOURS)
def test_an_error_in_a_set_is_the_set_s_own():
    with process_sets([0, 1]) as (pair,):
        if pair.included():
            with pytest.raises(hvd.HorovodMismatchError, match="Mismatched data types"):
                hvd.allreduce(np.ones(2, ["f4", "f8"][pair.rank()]), name="x", process_set=pair)
            check_equal(hvd.allreduce(np.ones(2), op=hvd.Sum, name="x", process_set=pair), np.full(2, 2.0))
        check_equal(hvd.allreduce(np.ones(2), op=hvd.Sum, name="x"), np.full(2, float(hvd.size())))


STATIC = [World("static-shm4", "a:4", SMALL_CHUNKS), World("static-tcp2", "a:2", SMALL_CHUNKS | TCP)]


@on_all_ranks(*STATIC)
def test_static_sets():
    size = hvd.size()
    hvd.shutdown()
    sets = [hvd.ProcessSet(range(start, size, 2)) for start in (0, 1)]
    hvd.init(process_sets=sets)
    assert [process_set.process_set_id for process_set in sets] == [1, 2]
    for process_set in sets:
        if process_set.included():
            check_everything_in(process_set)
    with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS"):
        hvd.add_process_set([0])
    with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS"):
        hvd.remove_process_set(sets[0])
    hvd.shutdown()
    assert [process_set.process_set_id for process_set in sets] == [None, None]
    hvd.init(process_sets="dynamic")
    with process_sets([0]):
        pass
    hvd.shutdown()
    hvd.init()


@on_all_ranks(*STATIC)
def test_static_sets_must_agree():
    own_rank = hvd.rank()
    hvd.shutdown()
    with pytest.raises(ValueError, match="different process sets"):
        hvd.init(process_sets=[hvd.ProcessSet([0 if own_rank == 0 else 1])])
    assert not hvd.is_initialized()
    hvd.init()
    check_equal(hvd.allreduce(np.ones(2)), np.ones(2))
