# SPDX-License-Identifier: Apache-2.0
"""Compression with the other options of DistributedOptimizer, its bytes on the wire, and ranks that differ."""

import math

import numpy as np
import pytest
import torch
from harness.torch_training import on_torch_ranks as on_ranks

import horovod.torch as hvd

METHODS = {
    "int8": lambda **more: hvd.Compression.int8(**more),
    "onebit": lambda **more: hvd.Compression.onebit(**more),
    "topk": lambda **more: hvd.Compression.topk(0.1, **more),
    "powersgd": lambda **more: hvd.Compression.powersgd(2, 0, **more),
}
OPTIONS = {
    "sum": {"op": hvd.Sum},
    "predivided": {"gradient_predivide_factor": 2.0},
    "shared memory": {"gradient_as_bucket_view": True},
    "two passes": {"backward_passes_per_step": 2},
    "groups": {"groups": 2},
    "compiled": {},
}
STEPS = 3


def train(method, compiled=False, **options):
    """Return the gradients of each step: a compressed weight and two dense biases."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(160, 130), torch.nn.Tanh(), torch.nn.Linear(130, 2))
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), compression=method, **options)
    run = torch.compile(model, backend="eager") if compiled else model
    passes = options.get("backward_passes_per_step", 1)
    found = []
    for step in range(STEPS):
        optimizer.zero_grad()
        rows = torch.from_numpy(np.random.default_rng(10 * step + hvd.rank()).standard_normal((8, 160)).astype("f4"))
        for _ in range(passes):
            (run(rows).square().mean() / passes).backward()
        optimizer.step()
        found.append([it.grad.clone() for it in model.parameters()])
    return found


@on_ranks("hosts3")
@pytest.mark.parametrize("kind", METHODS)
def test_options_of_the_optimizer(kind):
    expected = train(METHODS[kind]())
    for name, options in OPTIONS.items():
        factor = hvd.size() if name == "sum" else 1
        for found, wanted in zip(train(METHODS[kind](), name == "compiled", **options), expected, strict=True):
            for one, other in zip(found, wanted, strict=True):
                if name in ("shared memory", "compiled"):
                    assert torch.equal(one, other), name
                torch.testing.assert_close(one, factor * other, rtol=1e-4, atol=1e-5, msg=f"{kind}, {name}")


@on_ranks("tcp2")
@pytest.mark.parametrize("kind", ["int8", "onebit", "topk"])
def test_bytes_on_the_wire(kind):
    """Each rank sends its message in both stages of int8 and onebit, and once with top-k."""
    count = 1 << 19
    parameter = torch.nn.Parameter(torch.zeros(count))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([parameter], lr=1.0), [("p", parameter)], compression=METHODS[kind](scope="all")
    )
    values = torch.randn(count, generator=torch.Generator().manual_seed(hvd.rank()))
    moved = []
    for _ in range(2):
        optimizer.zero_grad()
        before = hvd.counters()["data_bytes_sent"]
        (parameter * values).sum().backward()
        optimizer.step()
        hvd.barrier()
        moved.append(hvd.counters()["data_bytes_sent"] - before)
    bits = {"int8": count * (1 + 4 / 256), "onebit": count * (1 / 8 + 4 / 4096), "topk": 8 * math.ceil(0.125 * count)}
    assert bits[kind] <= moved[1] < bits[kind] + 1000, (kind, moved)


@on_ranks("shm2")
@pytest.mark.parametrize("scope", ["host", "all"])
def test_a_rank_without_compression_gives_all_ranks_an_error(scope):
    """Both ranks are on one host, where scope="host" leaves the reduction to the engine."""
    parameter = torch.nn.Parameter(torch.zeros(20_000))
    method = hvd.Compression.int8(scope=scope) if hvd.rank() else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), [("p", parameter)], compression=method)
    text = rf"different communication hooks: none on rank 0, .int8\(block=256.*scope='{scope}'\). on rank 1"
    with pytest.raises(hvd.HorovodMismatchError, match=text):
        parameter.sum().backward()
    assert optimizer.comm_hook is None or hvd.rank() == 1


@on_ranks("shm2")
def test_integers_and_a_ratio_out_of_range_are_refused_by_name():
    whole = torch.nn.Parameter(torch.zeros(4, dtype=torch.int32), requires_grad=False)
    parameter = torch.nn.Parameter(torch.zeros(4, dtype=torch.complex64))
    sgd = torch.optim.SGD([parameter, whole], lr=1.0)
    with pytest.raises(ValueError, match=r"support floating-point parameters; 'p' is torch.complex64"):
        hvd.DistributedOptimizer(sgd, [("p", parameter), ("i", whole)], compression=hvd.Compression.int8())
    for ratio in (0.0, -0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="topk: ratio must be above 0 and at most 1"):
            hvd.Compression.topk(ratio)
