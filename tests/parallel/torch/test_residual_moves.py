# SPDX-License-Identifier: Apache-2.0
"""Residuals after ranks have come or gone: ranks of a host exchange them by offsets; the log says what is lost."""

import logging
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from harness.torch_training import on_torch_ranks as on_ranks

import horovod.torch as hvd
from horovod.common.log import logger

SHAPE = (160, 130)  # values in more than five units of 4,096
METHODS = {
    "int8": lambda: hvd.Compression.int8(),
    "topk": lambda: hvd.Compression.topk(0.05),
    "dgc": lambda: hvd.Compression.dgc(0.05, 0.9, ramp=()),
    "powersgd": lambda: hvd.Compression.powersgd(2, 0),
}


def step(optimizer, matrix, array):
    optimizer.zero_grad()
    (matrix * torch.from_numpy(array)).sum().backward()
    optimizer.step()


def made(kind, **options):
    matrix = torch.nn.Parameter(torch.zeros(SHAPE))
    return matrix, hvd.DistributedOptimizer(
        torch.optim.SGD([matrix], lr=1.0), [("matrix", matrix)], compression=METHODS[kind](), **options
    )


def moved(kind, state, **options):
    """Return a bucket's state after a step of other ranks, whose NaN leaves all residuals as they are."""
    matrix, optimizer = made(kind, **options)
    if state is not None:
        optimizer.comm_hook.load_state_dict(state)
    step(optimizer, matrix, np.full(SHAPE, np.nan, np.float32))
    return optimizer.comm_hook.state_dict()


def on_hosts(states):
    """Return, for each host and kind of residual, all values that its ranks have; NaN stands for missing ones."""
    found = {}
    for state in states:
        if state is None:
            continue
        place, count, segments = state["buckets"][0]["holding"]
        for kind, values in state["buckets"][0]["memory"].items():
            whole, at = found.setdefault((place, kind), np.full(count, np.nan, np.float32)), 0
            for start, end in segments[kind]:
                whole[start:end] = values[at : at + end - start]
                at += end - start
    return found


@contextmanager
def logged():
    """Collect messages of level info."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@on_ranks("hosts4")
@pytest.mark.parametrize("kind", METHODS)
def test_a_rank_leaves_and_another_comes(kind):
    """Host a has ranks 0 and 1, host b 2 and 3. Rank 1 leaves: all values belong to rank 0, and to rank 2 on host b."""
    matrix, optimizer = made(kind)
    for number in range(2):
        array = np.random.default_rng(10 * number + hvd.rank()).standard_normal(SHAPE).astype(np.float32)
        step(optimizer, matrix, array)
    state = optimizer.comm_hook.state_dict()
    before = hvd.allgather_object(state)
    few = hvd.add_process_set([0, 2, 3])
    with logged() as log:
        fewer = moved(kind, state, process_set=few) if few.included() else None
    told = hvd.allgather_object([it for it in log if "the ranks or hosts have changed" in it])
    during = hvd.allgather_object(fewer)
    # Host b still has everything. Host a begins with zeros where rank 1 had residuals.
    compare(on_hosts([before[0], *before[2:]]), on_hosts(during))
    assert "begin with zero" in told[0][0]
    assert told[1] == []
    assert " 0 values come from other ranks" not in told[2][0]
    # A new rank comes. It has no state, and takes over a part of rank 0's.
    more = moved(kind, fewer)
    after = hvd.allgather_object(more)
    compare(on_hosts(during), on_hosts(after))
    assert any(values.abs().max() > 0 for values in after[3]["buckets"][0]["memory"].values())
    hvd.remove_process_set(few)


def compare(before, after):
    for (place, kind), values in after.items():
        assert not np.isnan(values).any() or kind == "server", (place, kind)
        known = before.get((place, kind), np.full(len(values), np.nan, np.float32))
        kept = ~np.isnan(values)
        np.testing.assert_array_equal(values[kept], np.nan_to_num(known)[kept], err_msg=f"{place} {kind}")


@on_ranks("hosts3")
def test_with_scope_all_each_worker_keeps_its_own():
    def train(count, state=None, **options):
        matrix = torch.nn.Parameter(torch.zeros(SHAPE))
        method = hvd.Compression.topk(0.05, scope="all")
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([matrix], lr=1.0), [("m", matrix)], compression=method, **options
        )
        if state is not None:
            optimizer.comm_hook.load_state_dict(state)
        for number in range(count):
            step(
                optimizer,
                matrix,
                np.random.default_rng(10 * number + hvd.rank()).standard_normal(SHAPE).astype(np.float32),
            )
        return matrix, optimizer

    _, optimizer = train(2)
    state = optimizer.comm_hook.state_dict()
    residual = state["buckets"][0]["memory"]["residual"]
    few = hvd.add_process_set([1, 2])
    if few.included():
        matrix, optimizer = train(0, state, process_set=few)
        step(optimizer, matrix, np.full(SHAPE, np.nan, np.float32))
        assert torch.equal(optimizer.comm_hook.state_dict()["buckets"][0]["memory"]["residual"], residual)
    hvd.remove_process_set(few)
    # All ranks load the state of rank 0, which only rank 0 may use.
    matrix, optimizer = train(0, hvd.broadcast_object(state))
    step(optimizer, matrix, np.full(SHAPE, np.nan, np.float32))
    found = optimizer.comm_hook.state_dict()["buckets"][0]["memory"]["residual"]
    assert torch.equal(found, residual if hvd.rank() == 0 else torch.zeros(residual.shape))
