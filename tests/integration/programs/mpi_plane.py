# SPDX-License-Identifier: Apache-2.0
"""Program for four ranks of mpirun with tensors sent by MPI: compare results with NumPy, then kill a rank."""

import json
import os
import pickle
import random
import signal
import sys
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import horovod.numpy as hvd
from horovod.common.context import default_context

INTEGERS = ["uint8", "int8", "uint16", "int16", "int32", "int64", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64", ml_dtypes.bfloat16, ml_dtypes.float8_e5m2]
NUMPY = {hvd.Sum: np.add, hvd.Min: np.minimum, hvd.Max: np.maximum, hvd.Product: np.multiply}


def engine() -> dict:
    return json.loads(default_context.world.describe())


def tensor(rank: int, dtype: object, rows: int = 7) -> np.ndarray:
    return (np.arange(rows * 3) % 2 + rank % 2 + 1).reshape(rows, 3).astype(dtype)


def check_kinds(ranks: list[int], process_set: hvd.ProcessSet) -> None:
    """Check every collective, dtype and reduction in a set that contains this rank."""
    me, size = ranks.index(hvd.rank()), len(ranks)
    options = {"process_set": process_set}
    for dtype in [*INTEGERS, *FLOATS, "bool"]:
        inputs = [tensor(rank, dtype) for rank in ranks]
        mine = inputs[me]
        for op, combine in NUMPY.items():
            expected = combine.reduce([it.astype("float64") for it in inputs]).astype(dtype)
            if dtype == "bool":
                expected = np.ones_like(mine)
            name = f"{np.dtype(dtype)} {op}"
            np.testing.assert_array_equal(hvd.allreduce(mine, op=op, name=name, **options), expected, name)
            if op == hvd.Sum:
                share = hvd.reducescatter(mine, op=op, name=name, **options)
                np.testing.assert_array_equal(share, np.array_split(expected, size)[me], name)
        unequal = tensor(me, dtype, rows=me)  # rank 0 has no rows
        gathered = hvd.allgather(unequal, name=f"{np.dtype(dtype)}", **options)
        np.testing.assert_array_equal(gathered, np.concatenate([tensor(j, dtype, j) for j in range(size)]))
        root = ranks[-1]
        sent = hvd.broadcast(mine, root_rank=root, name=f"{np.dtype(dtype)}", **options)
        np.testing.assert_array_equal(sent, tensor(root, dtype))
        splits = [(me + j) % 3 for j in range(size)]
        moved = hvd.alltoall(tensor(me, dtype, sum(splits)), splits=splits, name=f"{np.dtype(dtype)}", **options)
        pieces = []
        for j in range(size):
            theirs = [(j + k) % 3 for k in range(size)]
            begin = sum(theirs[:me])
            pieces.append(tensor(j, dtype, sum(theirs))[begin : begin + theirs[me]])
        np.testing.assert_array_equal(moved[0], np.concatenate(pieces))
        assert list(moved[1]) == [len(piece) for piece in pieces]


def check_factors() -> None:
    """Check averages, scale factors, float16 sums that are rounded once, NaN in a minimum, and Adasum."""
    size = hvd.size()
    whole = np.full(5000, hvd.rank() + 1, "int32")
    np.testing.assert_array_equal(hvd.allreduce(whole, op=hvd.Average, name="whole"), np.full(5000, 10 // 4))
    for dtype in ("uint8", "int8", "uint16", "int16", "uint32", "int32"):
        limits = np.iinfo(dtype)
        for value in (limits.max, limits.min):
            own = np.full(5003, value - (hvd.rank() == 1) * np.sign(value), dtype)
            exact = np.full(5003, int((4 * int(value) - np.sign(value)) / 4), dtype)
            np.testing.assert_array_equal(hvd.allreduce(own, name=f"average {dtype} {value}"), exact)
            share = hvd.reducescatter(own, name=f"share {dtype} {value}")
            np.testing.assert_array_equal(share, np.array_split(exact, size)[hvd.rank()])
    scaled = hvd.allreduce(
        np.ones(5000, "float32"), op=hvd.Sum, name="scaled", prescale_factor=3.0, postscale_factor=0.5
    )
    np.testing.assert_array_equal(scaled, np.full(5000, 1.5 * size))
    halves = hvd.allreduce(np.full(70000, 2049.0 if hvd.rank() else 1.0, "float16"), op=hvd.Sum, name="halves")
    np.testing.assert_array_equal(halves, np.full(70000, 3 * 2048 + 1, "float16"))  # 2049 is not a float16
    lowest = hvd.allreduce(np.full(5000, np.nan if hvd.rank() == 1 else 1.0), op=hvd.Min, name="nan")
    assert np.isnan(lowest).all()
    alike = hvd.allreduce(np.full(5000, 4.0), op=hvd.Adasum, name="adasum")
    np.testing.assert_allclose(alike, np.full(5000, 4.0))


def check_fused_and_large() -> None:
    tensors = [np.full(1 + 37 * i, hvd.rank() + i, "float32") for i in range(40)]
    for i, result in enumerate(hvd.grouped_allreduce(tensors, op=hvd.Sum, name="group")):
        np.testing.assert_array_equal(result, np.full(1 + 37 * i, 6 + 4 * i))
    large = np.arange(3_000_000, dtype="float64")
    np.testing.assert_array_equal(hvd.allreduce(large, op=hvd.Sum, name="large"), large * hvd.size())
    np.testing.assert_array_equal(hvd.broadcast(large * hvd.rank(), root_rank=2, name="large"), large * 2)


def check_overlapping(sets: list[hvd.ProcessSet]) -> None:
    """Submit to all sets of this rank, in a random order that differs from rank to rank."""
    order = [(i, turn) for i, one in enumerate(sets) if one.included() for turn in range(15)]
    random.Random(hvd.rank()).shuffle(order)
    handles = {}
    for i, turn in order:
        data = np.full(2000 + turn, hvd.rank() + turn, "int64")
        handles[i, turn] = hvd.allreduce_async(data, op=hvd.Sum, name=f"{turn}", process_set=sets[i])
    for (i, turn), handle in handles.items():
        ranks = sets[i].ranks
        expected = np.full(2000 + turn, sum(ranks) + turn * len(ranks))
        np.testing.assert_array_equal(hvd.synchronize(handle), expected)


def check_added(without_last: MPI.Comm, outer: MPI.Comm) -> None:
    """Add sets from communicators at run time: one that splits the ranks, and one that does not contain every rank."""
    me = hvd.rank()
    added = hvd.add_process_set(without_last)
    assert added.ranks == ([3] if me == 3 else [0, 1, 2]), added
    total = hvd.allreduce(np.full(5000, me), op=hvd.Sum, name="added", process_set=added)
    np.testing.assert_array_equal(total, np.full(5000, 3))
    with pytest.raises(ValueError, match="already exists"):
        hvd.add_process_set(hvd.ProcessSet(without_last))
    assert (outer == MPI.COMM_NULL) == (me in (1, 2))
    ends = hvd.add_process_set(hvd.ProcessSet(outer))
    assert (ends.ranks, ends.included()) == ([0, 3], me in (0, 3)), ends
    assert hvd.remove_process_set(ends)
    assert hvd.add_process_set(ends).ranks == [0, 3]


def check_errors() -> None:
    with pytest.raises(hvd.HorovodInternalError, match="differs"):
        hvd.allreduce(np.ones(3000 + hvd.rank(), "float32"), name="differs")
    if hvd.rank() == 0:
        hvd.join()
    else:
        total = hvd.allreduce(np.ones(5000, "float32"), op=hvd.Sum, name="without rank 0")
        np.testing.assert_array_equal(total, np.full(5000, 3))
        hvd.join()


def lose_a_rank() -> str:
    """Kill the last rank while the others wait for it in MPI; return the error that each survivor receives."""
    if hvd.rank() == hvd.size() - 1:
        hvd.allreduce_async(np.ones(5_000_000, "float32"), name="last")
        time.sleep(0.05)  # the operation may be waiting or transferring data; both must end with an error
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    try:
        for turn in range(1000):
            hvd.allreduce(np.ones(5_000_000, "float32"), name="last" if turn == 0 else f"more {turn}")
    except hvd.HorovodInternalError as error:
        assert time.monotonic() - begun < 10, time.monotonic() - begun
        return str(error)
    raise AssertionError("nobody noticed")


def check_the_communicator_of_the_world(halves: MPI.Comm) -> None:
    """Check that the global process set holds the communicator passed to hvd.init() until hvd.shutdown()."""
    assert hvd.global_process_set.mpi_comm is None
    hvd.init(comm=halves)
    assert hvd.global_process_set.mpi_comm == halves != MPI.COMM_WORLD
    assert (hvd.rank(), hvd.size()) == (halves.Get_rank(), 2)
    with pytest.raises(ValueError, match="already exists"):
        hvd.add_process_set(hvd.global_process_set)
    assert pickle.loads(pickle.dumps(hvd.global_process_set)) is hvd.global_process_set
    hvd.shutdown()
    assert hvd.global_process_set.mpi_comm is None


def main() -> None:
    overlapping = [hvd.ProcessSet(ranks) for ranks in ([0, 1], [1, 2], [0, 2], [1, 2, 3])]
    halves = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.Get_rank() // 2)
    by_communicator = hvd.ProcessSet(halves)
    without_last = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.Get_rank() == 3)
    outer = MPI.COMM_WORLD.Split(0 if MPI.COMM_WORLD.Get_rank() in (0, 3) else MPI.UNDEFINED)
    hvd.init(comm=MPI.COMM_WORLD)
    assert hvd.global_process_set.mpi_comm == MPI.COMM_WORLD
    assert (hvd.mpi_enabled(), hvd.mpi_built(), hvd.gloo_enabled()) == (True, True, False)
    assert hvd.mpi_threads_supported() == (MPI.Query_thread() == MPI.THREAD_MULTIPLE)
    check_factors()
    hvd.shutdown()
    assert (hvd.mpi_enabled(), hvd.gloo_enabled()) == (False, True)
    check_the_communicator_of_the_world(halves)

    if MPI.COMM_WORLD.Get_rank() in (1, 3):
        hvd.init(comm=[3, 1])
        assert (hvd.rank(), hvd.size(), hvd.local_size()) == ({3: 0, 1: 1}[MPI.COMM_WORLD.Get_rank()], 2, 2)
        np.testing.assert_array_equal(hvd.allreduce(np.ones(5000), op=hvd.Sum, name="pair"), np.full(5000, 2))
        # Only rank 0's communicator is invalid. Both ranks receive the error, and neither waits for the other.
        with pytest.raises(ValueError, match="rank 0 reports: .* members that are not ranks of this world"):
            hvd.add_process_set(halves if hvd.rank() == 0 else MPI.COMM_SELF)
        hvd.shutdown()

    hvd.init(process_sets=[*overlapping, by_communicator])
    assert by_communicator.ranks == [hvd.rank() // 2 * 2, hvd.rank() // 2 * 2 + 1], by_communicator
    check_kinds(list(range(hvd.size())), hvd.global_process_set)
    check_kinds(by_communicator.ranks, by_communicator)
    check_added(without_last, outer)
    check_fused_and_large()
    check_overlapping([*overlapping, by_communicator, hvd.global_process_set])
    check_errors()
    found = engine()
    assert found["data_plane"] == "mpi"
    assert found["mpi_batches"] > 200, found
    counters = hvd.counters()
    assert counters["data_bytes_sent"] is counters["data_bytes_received"] is None, counters  # MPI does not report them
    assert type(counters["control_bytes_sent"]) is int, counters
    Path(sys.argv[1], f"pid.{hvd.rank()}").write_text(str(os.getpid()))
    hvd.barrier()
    told = lose_a_rank()
    # Use a file, because mpirun may have ended with its first rank. Write and rename it, because mpirun may kill this
    # rank while it writes.
    written = Path(sys.argv[1], f"writing.{hvd.rank()}")
    written.write_text(told)
    written.rename(written.with_name(f"told.{hvd.rank()}"))
    sys.exit(3)


main()
