# SPDX-License-Identifier: Apache-2.0
"""Equal inputs give equal bits in every run of a layout, however split and fused; on request, in every layout.

A body returns a digest of each result, and the digests of one world are compared with those of the other worlds. The
magnitudes of the inputs differ so much that nearly every other order of additions changes the bits.
"""

import itertools

import numpy as np
import pytest
from harness.arrays import digest, dtype_of, inputs, reduced
from harness.pool import Pool, Pools
from harness.worlds import DETERMINISTIC, TCP, World

import horovod.numpy as hvd

TINY = {"HOROVOD_CHUNK_BYTES": "1024", "HOROVOD_CHUNK_SLOTS": "3", "HOROVOD_SMALL_MESSAGE_BYTES": "0"}
WIDE = {"HOROVOD_CHUNK_BYTES": "1048576", "HOROVOD_SMALL_MESSAGE_BYTES": "65536"}
NEVER_FUSED = {"HOROVOD_FUSION_THRESHOLD": "0"}

SIZES = (1, 7, 1000, 20_011)
DTYPES = ("float32", "float16", "bfloat16")
OPS = {"Sum": hvd.Sum, "Average": hvd.Average, "Adasum": hvd.Adasum}


def uneven(size: int, dtype: str) -> list[np.ndarray]:
    """Return the input of each rank: magnitudes from 2**-6 to 2**6, so that the order of additions changes the sum."""
    powers = np.random.default_rng(size).integers(-6, 7, (4, size))
    return [
        (array.astype("float32") * np.exp2(power, dtype="float32")).astype(dtype_of(dtype))
        for array, power in zip(inputs((size,), dtype, seed=size, size=4), powers, strict=True)
    ]


def bits_of_everything():
    """Return {case: digest of the result}. Reduce each tensor alone, then all at once so that they may be fused."""
    bits = {}
    for op, dtype in itertools.product(OPS, DTYPES):
        tensors = {size: uneven(size, dtype)[hvd.rank()] for size in SIZES}
        for size, tensor in tensors.items():
            result = hvd.allreduce(tensor, op=OPS[op], name=f"alone.{op}.{dtype}.{size}")
            bits[f"{op} {dtype} {size}"] = digest(result)
        pending = {
            size: hvd.allreduce_async(tensor, op=OPS[op], name=f"fused.{op}.{dtype}.{size}")
            for size, tensor in tensors.items()
        }
        for size, handle in pending.items():
            assert digest(hvd.synchronize(handle)) == bits[f"{op} {dtype} {size}"], (
                f"fusing changes {op} {dtype} {size}"
            )
        if op != "Adasum":
            rows = uneven(4 * 333, dtype)[hvd.rank()].reshape(4, 333)
            parts = hvd.allgather(hvd.reducescatter(rows, op=OPS[op]))
            bits[f"reducescatter {op} {dtype}"] = digest(parts)
    numbers = uneven(1000, "float32")[hvd.rank()]
    bits["compressed"] = digest(hvd.allreduce(numbers, op=hvd.Sum, compression=hvd.Compression.bf16))
    return bits


def agreed_bits(pool: Pool) -> dict[str, str]:
    first, *others = pool.run(bits_of_everything, limit_s=60)
    for rank, bits in enumerate(others, start=1):
        assert bits == first, f"rank {rank} differs from rank 0"
    return first


def check_same(pools: Pools, world: World, expected: dict[str, str]) -> None:
    found = agreed_bits(pools.get(world))
    different = [case for case in expected if found[case] != expected[case]]
    assert not different, f"{world.name} differs in {different}"


def test_the_inputs_can_tell_one_order_from_another():
    """Half types are added in float32, where the order hardly matters, but rounding between two stages does."""
    for dtype in DTYPES:
        arrays = uneven(20_011, dtype)
        pairs = [reduced(arrays[:2], "Sum"), reduced(arrays[2:], "Sum")]
        assert digest(reduced(pairs, "Sum")) != digest(reduced(arrays, "Sum"))
    assert digest(reduced(uneven(20_011, "float32")[::-1], "Sum")) != digest(reduced(uneven(20_011, "float32"), "Sum"))


ALONE = World("deterministic-shm4", "a:4", DETERMINISTIC)


@pytest.mark.timeout(180)  # four worlds of four ranks one after the other, and NumPy's reference of their results
def test_deterministic_results_do_not_depend_on_transport_or_layout(pools):
    bits = agreed_bits(pools.get(ALONE))
    for op, dtype, size in itertools.product(("Sum", "Average"), DTYPES, SIZES):
        assert bits[f"{op} {dtype} {size}"] == digest(reduced(uneven(size, dtype), op)), (op, dtype, size)
    for other in (
        World("deterministic-tcp4", "a:4", DETERMINISTIC | TCP),
        World("deterministic-hosts4", "a:2,b:2", DETERMINISTIC | TINY),
        World("deterministic-uneven4", "a:1,b:3", DETERMINISTIC | WIDE | NEVER_FUSED),
    ):
        check_same(pools, other, bits)


@pytest.mark.parametrize("hosts", ["a:4", "a:2,b:2", "a:1,b:3"])
def test_results_do_not_depend_on_chunks_fusion_or_the_run(pools, hosts):
    mark = hosts.replace(":", "").replace(",", "")
    whole = agreed_bits(pools.get(World(f"bits-{mark}", hosts, WIDE | NEVER_FUSED)))
    check_same(pools, World(f"bits-tiny-{mark}", hosts, TINY), whole)
