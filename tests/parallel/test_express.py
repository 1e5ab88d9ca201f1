# SPDX-License-Identifier: Apache-2.0
"""Small allreduces that a caller waits for need no word of the leader: the same bits, in the same cases an error."""

import json

import numpy as np
import pytest
from harness.arrays import DTYPES, OPS, check_reduced, digest, inputs, mine
from harness.worlds import SEVERAL, on_all_ranks

import horovod.numpy as hvd
from horovod.common.context import default_context

ROUNDS = 3


def express_runs():
    return json.loads(default_context.world.describe())["express_runs"]


def goes_express():
    """All on one host, or each on one of its own."""
    return hvd.size() in (hvd.local_size(), hvd.cross_size())


@pytest.mark.parametrize("op", OPS)
@on_all_ranks(*SEVERAL)
def test_every_dtype(op):
    before, digests = express_runs(), []
    dtypes = [dtype for dtype in DTYPES if (op, dtype) != ("Average", "bool")]
    for dtype in dtypes:
        arrays = inputs((7,), dtype, seed=f"{op} {dtype}")
        fused = hvd.synchronize(hvd.allreduce_async(mine(arrays), name=f"asked {dtype}", op=OPS[op]))
        for _ in range(1 + ROUNDS):
            result = hvd.allreduce(mine(arrays), name=f"express {op} {dtype}", op=OPS[op])
            assert digest(result) == digest(fused)
        digests.append(check_reduced(result, arrays, op))
    assert express_runs() - before == (ROUNDS * len(dtypes) if goes_express() else 0)
    return digests


@on_all_ranks(*SEVERAL)
def test_scaled_empty_and_scalar():
    for _ in range(ROUNDS):
        ones = np.ones(5, np.float32)
        scaled = hvd.allreduce(ones, name="scaled", op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
        assert (scaled == 2.0 * hvd.size()).all()
        assert hvd.allreduce(np.empty((0, 3)), name="empty").shape == (0, 3)
        assert hvd.allreduce(np.float64(hvd.rank()), name="scalar") == (hvd.size() - 1) / 2


@on_all_ranks(*SEVERAL)
def test_a_mismatch_is_told_to_all_and_costs_nothing_else():
    for step in range(ROUNDS):
        assert (hvd.allreduce(np.full(4, step), name="agreed", op=hvd.Sum) == step * hvd.size()).all()
        with pytest.raises(hvd.HorovodInternalError, match="Mismatched"):
            hvd.allreduce(np.ones(4 + hvd.rank() % 2), name="agreed", op=hvd.Sum)


@on_all_ranks(*SEVERAL)
def test_beside_what_is_under_way():
    """Express messages and a large asynchronous one do not wait for each other, nor mix."""
    for step in range(ROUNDS):
        large = hvd.allreduce_async(np.full(1 << 20, hvd.rank() + step), name="large", op=hvd.Sum)
        for i in range(10):
            small = hvd.allreduce(np.full(3, i + hvd.rank()), name=f"small{i % 2}", op=hvd.Sum)
            assert (small == i * hvd.size() + hvd.size() * (hvd.size() - 1) // 2).all()
        assert (hvd.synchronize(large) == step * hvd.size() + hvd.size() * (hvd.size() - 1) // 2).all()
