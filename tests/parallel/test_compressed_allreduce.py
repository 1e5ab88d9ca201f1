# SPDX-License-Identifier: Apache-2.0
"""Allreduce of NumPy arrays by int8: values equal a simulation in one process, small tensors, and refused calls."""

import numpy as np
import pytest
from harness.compressed_exchange import Simulation, int8
from harness.worlds import on_all_ranks

import horovod.numpy as hvd
from horovod.common.context import default_context

COUNT = 5 * 4096 + 300


def mine(rank, count=COUNT):
    return np.random.default_rng(rank).standard_normal(count).astype(np.float32)


def everyones(count=COUNT):
    return [mine(rank, count) for rank in range(hvd.size())]


@on_all_ranks("shm2", "hosts3", "hosts4")
@pytest.mark.parametrize("scope", ["host", "all"])
def test_values_are_those_of_one_process(scope):
    method = hvd.Compression.int8(scope=scope)
    hosts = list(default_context.hosts) if scope == "host" else list(range(hvd.size()))
    expected = Simulation(hosts, int8(256), True).step(everyones())
    if len(set(hosts)) == 1:
        expected = np.mean(everyones(), 0)
    found = hvd.allreduce(mine(hvd.rank()), compression=method)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    array = mine(hvd.rank()).astype(np.float64).reshape(-1, 4)
    twice, whole = hvd.grouped_allreduce([array, np.arange(3)], compression=method, op=hvd.Sum, prescale_factor=2.0)
    np.testing.assert_allclose(twice.ravel(), 2.0 * hvd.size() * expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(whole, 2 * hvd.size() * np.arange(3))
    assert (twice.dtype, twice.shape) == (np.float64, array.shape)
    return found.tobytes().hex()[:4000]


@on_all_ranks("hosts4")
def test_few_values_a_nan_and_a_process_set():
    for count in (1, 4097):
        found = hvd.allreduce(mine(hvd.rank(), count), compression=hvd.Compression.int8(min_bytes=0))
        expected = Simulation(default_context.hosts, int8(256), True).step(everyones(count))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    spoilt = mine(hvd.rank())
    if hvd.rank() == 3:
        spoilt[5000] = np.inf
    assert np.isnan(hvd.allreduce(spoilt, compression=hvd.Compression.int8())).any()
    across = hvd.add_process_set([0, 3])
    if hvd.rank() in (0, 3):
        found = hvd.allreduce(mine(hvd.rank()), compression=hvd.Compression.int8(), process_set=across)
        expected = Simulation(["a", "b"], int8(256), True).step([mine(0), mine(3)])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    hvd.remove_process_set(across)


@on_all_ranks("shm2")
def test_what_is_refused():
    array = mine(hvd.rank())
    for method in (hvd.Compression.powersgd(), hvd.Compression.onebit(), hvd.Compression.topk(0.1)):
        with pytest.raises(
            ValueError, match=rf"allreduce does not support compression={method.name}\(.*Use .*int8\(\)"
        ):
            hvd.allreduce(array, compression=method)
    with pytest.raises(ValueError, match=r"int8\(.* supports op=hvd.Average and op=hvd.Sum only, not Adasum"):
        hvd.allreduce(array, compression=hvd.Compression.int8(), op=hvd.Adasum)
    with pytest.raises(ValueError, match=r"reducescatter does not support compression=int8\("):
        hvd.reducescatter(array, compression=hvd.Compression.int8())
    with pytest.raises(TypeError, match="compression=Int8 is a class: pass an instance"):
        hvd.allreduce(array, compression=hvd.Compression.int8)
    different = hvd.Compression.int8(block=256 * (1 + hvd.rank()), scope="all")
    with pytest.raises(hvd.HorovodMismatchError, match=r"int8\(block=256.*int8\(block=512"):
        hvd.allreduce(array, compression=different, name="different")


@on_all_ranks("one")
def test_codecs_keep_nothing_and_leave_the_residual_to_the_caller():
    values, left = mine(0), np.zeros(COUNT, np.float32)
    for method in (hvd.Compression.int8(), hvd.Compression.onebit(), hvd.Compression.topk(0.1)):
        codec = hvd.codec(method)
        wire = codec.encode(values, left=left)
        np.testing.assert_allclose(codec.decode(wire, COUNT) + left, values, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"hvd.codec does not support compression=powersgd\("):
        hvd.codec(hvd.Compression.powersgd())
