# SPDX-License-Identifier: Apache-2.0
"""Small blocking collectives on the fast path without the leader: equal bits, and errors in equal cases."""

import json

import numpy as np
import pytest
from harness.arrays import DTYPES, OPS, check_reduced, digest, inputs, mine
from harness.worlds import SEVERAL, on_all_ranks

import horovod.numpy as hvd
from horovod.common.context import default_context

ROUNDS = 3


def told():
    return json.loads(default_context.world.describe())


def express_runs():
    return told()["express_runs"]


@pytest.mark.checked_numbers("small reductions of every data type", against="NumPy")
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
    assert express_runs() - before == ROUNDS * len(dtypes)
    return digests


@on_all_ranks(*SEVERAL)
def test_reducescatter_has_the_bits_of_the_other_way():
    """Over hosts with several ranks, the engine does not add in the order of the ranks."""
    rows = np.random.default_rng(hvd.rank()).standard_normal((2 * hvd.size(), 3)).astype(np.float32)
    expected = digest(hvd.synchronize(hvd.reducescatter_async(rows, name="asked", op=hvd.Sum)))
    before = express_runs()
    for _ in range(1 + ROUNDS):
        assert digest(hvd.reducescatter(rows, name="express", op=hvd.Sum)) == expected
    assert express_runs() - before == ROUNDS


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
    """Small messages on the fast path and a large asynchronous one neither wait for each other nor mix."""
    for step in range(ROUNDS):
        large = hvd.allreduce_async(np.full(1 << 20, hvd.rank() + step), name="large", op=hvd.Sum)
        for i in range(10):
            small = hvd.allreduce(np.full(3, i + hvd.rank()), name=f"small{i % 2}", op=hvd.Sum)
            assert (small == i * hvd.size() + hvd.size() * (hvd.size() - 1) // 2).all()
        assert (hvd.synchronize(large) == step * hvd.size() + hvd.size() * (hvd.size() - 1) // 2).all()


def check_movements(step, rows, name):
    """Check an allgather, broadcast, alltoall and reducescatter of rows that differ from rank to rank."""
    size, rank = hvd.size(), hvd.rank()
    values = [np.arange(rows + 2 * each, dtype=np.float64) * (each + 1) + step for each in range(size)]
    assert (hvd.allgather(values[rank], name=f"{name}.gather") == np.concatenate(values)).all()
    root = step % size
    cast = hvd.broadcast(values[rank][:rows], root, name=f"{name}.cast{root}")
    assert (cast == values[root][:rows]).all()
    splits = [[rows // size + sender + 3 * receiver for receiver in range(size)] for sender in range(size)]
    inputs = [np.arange(sum(row), dtype=np.float64) * (sender + 1) - step for sender, row in enumerate(splits)]
    pieces = [np.split(inputs[sender], np.cumsum(splits[sender])[:-1])[rank] for sender in range(size)]
    received, counts = hvd.alltoall(inputs[rank], splits[rank], name=f"{name}.all")
    assert (received == np.concatenate(pieces)).all()
    assert counts.tolist() == [len(piece) for piece in pieces]
    total = np.array_split(sum(value[:rows] for value in values), size)[rank]
    scattered = hvd.reducescatter(values[rank][:rows], op=hvd.Sum, name=f"{name}.scatter")
    np.testing.assert_allclose(scattered, total)


@pytest.mark.checked_numbers("small allgathers, broadcasts and alltoalls", against="NumPy")
@pytest.mark.parametrize("rows", [2, 700, 4096])
@on_all_ranks(*SEVERAL)
def test_movements(rows):
    """Data travels inside messages, is read from shared buffers, or is written straight into the outputs."""
    before = express_runs()
    for step in range(4 * hvd.size()):
        check_movements(step, rows, f"rows{rows}")
    if told()["peers_by_socket"] == 0 or rows == 2:
        assert express_runs() - before >= 8 * hvd.size()


@on_all_ranks(*SEVERAL)
def test_movements_that_differ_are_told_to_all():
    for step in range(2 * ROUNDS):
        for rows in (3, 4096):
            wide = np.zeros((rows + hvd.rank(), 2))
            assert hvd.allgather(wide, name=f"wide{rows}").shape[1] == 2
            with pytest.raises(hvd.HorovodInternalError, match="Mismatched"):
                hvd.allgather(np.zeros((rows + hvd.rank(), 2 + hvd.rank() % 2)), name=f"wide{rows}")
            with pytest.raises(hvd.HorovodInternalError, match="Mismatched"):
                hvd.broadcast(np.zeros(rows), hvd.rank() % 2, name=f"cast{rows}")
            assert (hvd.broadcast(np.full(rows, hvd.rank()), 1, name=f"cast{rows}") == 1).all(), step


@on_all_ranks(*SEVERAL)
def test_results_stay_what_they_were():
    """The caller owns an output that other ranks wrote into: later steps must not change it."""
    kept = []
    for step in range(6):
        mine = np.full(5000, 10 * hvd.rank() + step, np.float64)
        kept.append((step, hvd.allgather(mine, name="kept"), hvd.alltoall(np.resize(mine, 4 * 1200), name="kept")))
    for step, gathered, exchanged in kept:
        ranks = np.arange(hvd.size())
        assert (gathered == np.repeat(10 * ranks + step, 5000)).all()
        assert (exchanged == np.repeat(10 * ranks + step, 4 * 1200 // hvd.size())).all()
