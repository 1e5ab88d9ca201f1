# SPDX-License-Identifier: Apache-2.0
"""Arrays in shared memory: results equal those of ordinary arrays, without staging where all ranks use them."""

import gc
import json
import os
import resource

import numpy as np
import pytest
from harness.arrays import DTYPES, OPS, check_reduced, digest, dtype_of, inputs, mine
from harness.worlds import SEVERAL, World, on_all_ranks

import horovod.numpy as hvd
from horovod.common.context import default_context


def direct_batches():
    return json.loads(default_context.world.describe())["direct_batches"]


def shared(array):
    copy = hvd.shared_zeros(array.shape, array.dtype)
    copy[...] = array
    return copy


@pytest.mark.parametrize("op", OPS)
@on_all_ranks(*SEVERAL)
def test_every_dtype(op):
    """On one host nothing is staged; in every world the bits equal those of ordinary arrays."""
    before, digests = direct_batches(), []
    dtypes = [dtype for dtype in DTYPES if (op, dtype) != ("Average", "bool")]
    for dtype in dtypes:
        arrays = inputs((1237,), dtype, seed=f"{op} {dtype}")
        ordinary = hvd.allreduce(mine(arrays), name="ordinary", op=OPS[op])
        array = shared(mine(arrays))
        assert array.dtype == dtype_of(dtype)
        assert hvd.allreduce_(array, name="shared", op=OPS[op]) is array
        assert digest(array) == digest(ordinary)
        digests.append(check_reduced(array, arrays, op))
    one_host = hvd.local_size() == hvd.size() and os.environ.get("HOROVOD_SHARED_MEMORY") != "0"
    assert direct_batches() - before == (len(dtypes) if one_host else 0)
    return digests


@on_all_ranks("shm2", "shm4")
def test_factors_fusion_and_changing_places():
    digests = []
    for step in range(3):
        tensors = [inputs((311 + index,), "float16", seed=f"{step} {index}") for index in range(12)]
        # Use new arrays at other addresses in every step, some of them in ordinary memory on rank 1; keep the names.
        ordinary = hvd.rank() == 1 and step == 1
        targets = [
            mine(arrays) if ordinary and not index % 3 else shared(mine(arrays)) for index, arrays in enumerate(tensors)
        ]
        factors = {"op": hvd.Average, "prescale_factor": 0.3, "postscale_factor": 1.7}
        handles = [hvd.allreduce_async_(target, name=f"t{index}", **factors) for index, target in enumerate(targets)]
        for arrays, target, handle in zip(tensors, targets, handles, strict=True):
            hvd.synchronize(handle)
            digests.append(check_reduced(target, arrays, "Average", 0.3, 1.7))
    return digests


@on_all_ranks(World("shm2 large chunks", "a:2"))
def test_a_view_of_a_large_array():
    array = hvd.shared_zeros((3, 700_001), np.float32)
    part = array[1]
    part[:] = np.arange(700_001) * (hvd.rank() + 1)
    before = direct_batches()
    hvd.allreduce_(part, op=hvd.Sum)
    assert direct_batches() == before + 1
    np.testing.assert_array_equal(part, np.arange(700_001, dtype=np.float32) * 3)
    assert not array[0].any()
    assert not array[2].any()


@on_all_ranks("shm2", "tcp2", "one")
def test_arrays_outlive_their_generation():
    array, raw = hvd.shared_zeros((2, 3), "int32"), np.frombuffer(hvd.shared_zeros(8, np.uint8), np.int64)
    assert array.shape == (2, 3)
    assert not array.any()
    array[...] = raw[0] = hvd.rank() + 1
    gc.collect()
    again = hvd.shared_zeros((), "float64")
    assert again.shape == ()
    hvd.shutdown()
    with pytest.raises(ValueError, match=r"hvd\.init\(\)"):
        hvd.shared_zeros(3)
    hvd.init()
    total = hvd.size() * (hvd.size() + 1) // 2
    assert (raw[0], array[1, 2]) == (hvd.rank() + 1, hvd.rank() + 1)
    hvd.allreduce_(array, op=hvd.Sum)  # memory of the previous generation is used like ordinary memory
    assert (array == total).all()
    assert direct_batches() == 0


@on_all_ranks("shm2")
def test_freed_memory_is_used_again():
    places = set()
    for _ in range(20):
        array = hvd.shared_zeros(1_000_000, np.uint8)
        assert not array.any()
        array[:] = 1
        places.add(array.ctypes.data)
        del array
    assert len(places) == 1


@on_all_ranks("shm2")
def test_a_forked_child_can_look_and_go():
    array = hvd.shared_zeros(5000, np.uint8)
    array[:] = 7
    child = os.fork()
    if child == 0:
        code = 0 if (array == 7).all() else 1
        del array
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert (array == 7).all()
    hvd.barrier()


@on_all_ranks("shm2")
def test_bad_arguments():
    with pytest.raises(ValueError, match="objects"):
        hvd.shared_zeros(3, object)
    with pytest.raises(ValueError, match="nbytes"):
        hvd.shared_zeros(-3)


@on_all_ranks("shm2")
def test_ordinary_memory_where_there_is_no_room():
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Shared memory is a file, so this limit stops it from growing.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.warns(RuntimeWarning, match="no room for 3000000 bytes .* `hvd doctor`"):
            array = hvd.shared_zeros(3_000_000, np.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not array.any()
    array[:] = hvd.rank() + 1
    before = direct_batches()
    assert (hvd.allreduce_(array, op=hvd.Sum) == 3).all()
    assert direct_batches() == before
