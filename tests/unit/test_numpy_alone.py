# SPDX-License-Identifier: Apache-2.0
"""The NumPy API in a world of one rank, where each collective has an obvious result, and the errors that it raises."""

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import horovod.numpy as hvd
from horovod.common import nccl_library
from horovod.common.exceptions import HorovodNotInitializedError

DTYPES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"]


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def test_topology_of_one() -> None:
    hvd.init()  # a second call returns at once
    assert hvd.is_initialized()
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (0, 1, 0, 1)
    assert (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (0, 1, True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_keeps_its_values(dtype: str) -> None:
    array = np.arange(6).astype(dtype).reshape(3, 2)
    before = array.copy()
    for result in (
        hvd.allreduce(array),
        hvd.allreduce(array, op=hvd.Max),
        hvd.allgather(array),
        hvd.broadcast(array, 0),
        hvd.alltoall(array),
        hvd.reducescatter(array),
    ):
        assert result.dtype == before.dtype
        np.testing.assert_array_equal(result, before)
        assert not np.shares_memory(result, array)


def test_bool_moves_and_reduces_but_does_not_average() -> None:
    array = np.array([True, False])
    np.testing.assert_array_equal(hvd.allgather(array), array)
    np.testing.assert_array_equal(hvd.allreduce(array, op=hvd.Max), array)
    with pytest.raises(ValueError, match="bool"):
        hvd.allreduce(array)


def test_ml_dtypes_by_name() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        array = np.array([1, 2, -4], dtype)
        result = hvd.allgather(array)
        assert result.dtype == array.dtype
        np.testing.assert_array_equal(result.astype(np.float32), [1, 2, -4])


def test_factors_and_legacy_average() -> None:
    array = np.array([1.0, 2.0])
    np.testing.assert_array_equal(hvd.allreduce(array, prescale_factor=3.0, postscale_factor=0.5), [1.5, 3.0])
    with pytest.warns(DeprecationWarning, match="average"):
        np.testing.assert_array_equal(hvd.allreduce(array, average=False), array)


def test_in_place_returns_the_same_array() -> None:
    array = np.array([1, 2])
    assert hvd.allreduce_(array, op=hvd.Sum, postscale_factor=2.0) is array
    np.testing.assert_array_equal(array, [2, 4])
    assert hvd.broadcast_(array, 0) is array
    assert hvd.grouped_allreduce_([array], op=hvd.Sum)[0] is array


@pytest.mark.parametrize("value", [3.5, [1.0, 2.0], np.float32(2), np.array(7)])
def test_scalars_and_lists_go_out_of_place(value: Any) -> None:
    np.testing.assert_array_equal(hvd.allreduce(value), value)
    np.testing.assert_array_equal(hvd.broadcast(value, 0), value)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_empty_arrays(shape: tuple[int, ...]) -> None:
    array = np.empty(shape, np.float32)
    for result in (hvd.allreduce(array), hvd.allgather(array), hvd.broadcast(array, 0), hvd.reducescatter(array)):
        assert result.shape == shape


def test_groups() -> None:
    arrays = [np.ones((2, 2), np.float32), np.arange(3)]
    for results in (hvd.grouped_allreduce(arrays), hvd.grouped_allgather(arrays), hvd.grouped_reducescatter(arrays)):
        assert isinstance(results, list)
        for result, array in zip(results, arrays, strict=True):
            np.testing.assert_array_equal(result, array)
    handle = hvd.grouped_allreduce_async(arrays)
    assert isinstance(hvd.synchronize(handle), tuple)
    with pytest.raises(ValueError, match="at least one"):
        hvd.grouped_allreduce([])


def test_alltoall_with_splits() -> None:
    output, received = hvd.alltoall(np.arange(4), splits=[3])
    np.testing.assert_array_equal(output, [0, 1, 2])
    assert (received.tolist(), received.dtype) == ([3], np.int32)
    assert len(hvd.synchronize(hvd.alltoall_async(np.arange(4)))) == 2


@pytest.mark.parametrize("splits", [[1, 1], [5], [-1], [1.5], [[1]], "x"])
def test_bad_splits(splits: Any) -> None:
    with pytest.raises(ValueError, match="split"):
        hvd.alltoall(np.arange(4), splits=splits)


def test_handles_count_from_one_and_give_their_result_once() -> None:
    first = hvd.allreduce_async(np.ones(2))
    second = hvd.allgather_async(np.ones(2))
    assert (first, second) == (1, 2)
    result = hvd.synchronize(first)
    np.testing.assert_array_equal(result, np.ones(2))
    assert hvd.synchronize(first) is None
    with pytest.raises(ValueError, match="Handle 1"):
        hvd.poll(first)
    hvd.synchronize(second)
    hvd.shutdown()
    hvd.init()
    assert hvd.allreduce_async(np.ones(2)) == 1


def test_poll_becomes_true() -> None:
    handle = hvd.allreduce_async(np.ones(2))
    hvd.barrier()
    while not hvd.poll(handle):
        pass
    assert hvd.synchronize(handle) is not None


def test_join_and_barrier() -> None:
    assert hvd.join() == 0
    assert hvd.join() == 0
    assert hvd.barrier() is None


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: hvd.allreduce(np.ones((4, 4))[:, ::2]), "ascontiguousarray"),
        (lambda: hvd.allreduce(np.ones(3).astype(">f8")), "byte order"),
        (lambda: hvd.allreduce(np.ones(3, np.complex64)), "complex64 is not supported"),
        (lambda: hvd.allreduce(np.array(["a"])), "not supported"),
        (lambda: hvd.allreduce(np.frombuffer(bytes(9), np.uint8)[1:].view(np.float64)), "aligned"),
        (lambda: hvd.allreduce(np.ma.masked_greater([1.0, 9.0], 5)), "masked.* pass array.filled"),
        (lambda: hvd.broadcast_(np.ma.masked_greater([1.0, 9.0], 5), 0), "masked.* pass array.filled"),
        (lambda: hvd.allgather(np.ma.masked_all(3)), "masked.* pass array.filled"),
        (lambda: hvd.allreduce_([1.0]), "in-place"),
        (lambda: hvd.allreduce_(np.broadcast_to(1.0, ())), "read-only"),
        (lambda: hvd.allgather(1.0), "scalar"),
        (lambda: hvd.reducescatter(1.0), "scalar"),
        (lambda: hvd.broadcast(1.0, 1), "root rank 1"),
        (lambda: hvd.allreduce(1.0, op=17), "op=17"),
        (lambda: hvd.broadcast_parameters(3, 0), "dict or a list"),
        (lambda: hvd.send(np.ones(1), 5), "no rank 5"),
    ],
)
def test_refusals_are_value_errors(call: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call()


def test_read_only_input_is_fine_out_of_place() -> None:
    array = np.arange(3)
    array.flags.writeable = False
    np.testing.assert_array_equal(hvd.allreduce(array), array)


def test_reducescatter_operation_error_class() -> None:
    with pytest.raises(hvd.HorovodInternalError, match="Average and Sum"):
        hvd.reducescatter(np.ones(2), op=hvd.Max)


def test_compression_restores_the_dtype() -> None:
    array = np.array([1.0, 2.5], np.float32)
    integers = np.array([1, 2])
    for compression in (hvd.Compression.none, hvd.Compression.fp16):
        results = hvd.grouped_allreduce([array, integers], compression=compression)
        assert [result.dtype for result in results] == [array.dtype, integers.dtype]
        np.testing.assert_array_equal(hvd.allreduce(array, compression=compression), array)


def test_objects() -> None:
    value = {"a": [1, 2], "f": max}
    assert hvd.broadcast_object(value) is value
    (copy,) = hvd.allgather_object(value)
    assert copy == value
    assert copy is not value


def test_unpicklable_object_raises_its_own_error() -> None:
    with pytest.raises(TypeError, match="pickle"):
        hvd.broadcast_object(threading.Lock())


def test_broadcast_parameters_in_place() -> None:
    parameters = {"w": np.ones(2), "b": np.zeros(1)}
    hvd.broadcast_parameters(parameters, root_rank=0)
    hvd.broadcast_parameters([np.ones(2), ("named", np.ones(1))], root_rank=0)
    np.testing.assert_array_equal(parameters["w"], [1, 1])


def test_after_shutdown_everything_names_init() -> None:
    hvd.shutdown()
    hvd.shutdown()
    assert not hvd.is_initialized()
    for question in (hvd.rank, hvd.size, hvd.local_rank, hvd.is_homogeneous, hvd.stop_timeline, hvd.join):
        with pytest.raises(ValueError, match=r"hvd\.init\(\)"):
            question()
    with pytest.raises(hvd.HorovodInternalError, match=r"hvd\.init\(\)"):
        hvd.allreduce(np.ones(1))


@pytest.mark.parametrize("mpi4py", [True, False])
def test_what_is_built(mpi4py: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Check that mpi_built depends on mpi4py being installed, while mpi_enabled stays False."""
    if mpi4py:
        (tmp_path / "mpi4py").mkdir()
        (tmp_path / "mpi4py" / "__init__.py").touch()
        monkeypatch.syspath_prepend(tmp_path)
    else:
        monkeypatch.setitem(sys.modules, "mpi4py", None)
    assert (hvd.gloo_built(), hvd.mpi_built(), hvd.nccl_built()) == (True, mpi4py, nccl_library.version())
    assert (hvd.gloo_enabled(), hvd.mpi_enabled()) == (True, False)
    with pytest.raises(ValueError, match="MPI"):
        hvd.mpi_threads_supported()


def test_init_with_a_communicator() -> None:
    hvd.shutdown()
    hvd.init(comm=[0])
    hvd.shutdown()
    with pytest.raises(ValueError, match="MPI"):
        hvd.init(comm=[0, 1])
    hvd.init(process_sets="dynamic")
    communicator = SimpleNamespace(Get_rank=lambda: 0)
    with pytest.raises(ValueError, match=r"needs MPI, but mpirun did not start this process\. Pass a list of ranks"):
        hvd.add_process_set(communicator)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python 3.12: fork in a process with threads
def test_forked_child_is_refused_and_leaves_the_parent_alone() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        text = "nothing was refused"
        try:
            hvd.allreduce(np.ones(1))
        except HorovodNotInitializedError as error:
            text = str(error)
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    assert b"forked" in os.read(reader, 1000)
    os.close(reader)
    np.testing.assert_array_equal(hvd.allreduce(np.ones(1)), [1])
