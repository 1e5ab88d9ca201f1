# SPDX-License-Identifier: Apache-2.0
"""GradScaler with compression: residuals follow the scale, also when one rank overflows and the scale is halved."""

import numpy as np
import pytest
import torch
from harness.torch_training import on_torch_ranks as on_ranks

import horovod.torch as hvd

SHAPE = (128, 160)
METHODS = {
    "int8": lambda: hvd.Compression.int8(),
    "onebit": lambda: hvd.Compression.onebit(),
    "topk": lambda: hvd.Compression.topk(0.05),
    "dgc": lambda: hvd.Compression.dgc(0.05, 0.9, ramp=()),
    "powersgd": lambda: hvd.Compression.powersgd(2, start_after=1),
}


def gradient(step):
    return torch.from_numpy(np.random.default_rng(100 * step + hvd.rank()).standard_normal(SHAPE).astype(np.float32))


def train(method, gradients, scaler=None):
    """Make one step for each gradient. Return the reduced gradients divided by the scale, and the weights."""
    parameter, reduced = torch.nn.Parameter(torch.zeros(SHAPE)), []
    sgd = torch.optim.SGD([parameter], lr=1.0)
    optimizer = hvd.DistributedOptimizer(sgd, [("p", parameter)], compression=method)
    for it in gradients:
        optimizer.zero_grad()
        loss = (parameter * it).sum()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        reduced.append(parameter.grad.clone())
    return reduced, parameter.detach()


@on_ranks("hosts3")
@pytest.mark.parametrize("kind", METHODS)
def test_residuals_follow_the_scale(kind):
    """All scales are powers of two, so every bit must equal that of training without a scaler."""
    if not hasattr(torch.amp, "GradScaler"):
        return None
    good = [gradient(step) for step in range(7)]
    spoilt = gradient(9)
    if hvd.rank() == 1:
        spoilt[3, 4] = float("inf")
    expected, weights = train(METHODS[kind](), good)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    found, same = train(METHODS[kind](), [*good[:2], spoilt, *good[2:]], scaler)
    assert scaler.get_scale() == 1024.0  # halved once and doubled once
    assert not torch.isfinite(found.pop(2)).all()
    for step, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert torch.equal(one, other), step
    assert torch.equal(same, weights)
    return same.flatten()[:500].tolist()


@on_ranks("hosts3")
def test_without_a_scaler_after_one_and_with_another_one():
    if not hasattr(torch.amp, "GradScaler"):
        return
    parameter = torch.nn.Parameter(torch.zeros(SHAPE))
    sgd = torch.optim.SGD([parameter], lr=1.0)
    optimizer = hvd.DistributedOptimizer(sgd, [("p", parameter)], compression=hvd.Compression.onebit())
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**power) for power in (4, 9)]
    for step, scaler in enumerate([scalers[0], scalers[0], None, None, scalers[1], scalers[1]]):
        optimizer.zero_grad()
        loss = (parameter * gradient(step)).sum()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    units = [it["unit"] for it in optimizer.comm_hook.state_dict()["buckets"].values()]
    assert units == [2.0**9]
