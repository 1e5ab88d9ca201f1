# SPDX-License-Identifier: Apache-2.0
"""Program of each rank of test_torch_cuda_buckets.py: gradients in memory of a GPU that all ranks share and map."""

import json
import os
import signal
import sys
import time
from typing import Any

import torch

import horovod.torch as hvd
from horovod.common.context import default_context

hvd.init()
torch.cuda.set_device(0)
DEVICE = torch.device("cuda", 0)
SIZE, RANK = hvd.size(), hvd.rank()
SHAPES = ((1000, 1000), (7,), (333, 3), (1 << 20,), (1,))
STEPS = 4


def direct_batches() -> int:
    return int(json.loads(default_context.world.describe())["direct_batches"])


def parameters(dtype: torch.dtype) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(shape, dtype=dtype, device=DEVICE)) for shape in SHAPES]


def gradients(dtype: torch.dtype, step: int) -> list[torch.Tensor]:
    torch.manual_seed(1000 * step + RANK)
    return [torch.randn(shape).to(dtype) for shape in SHAPES]


def wrapped(trained: list[torch.nn.Parameter], **more: Any) -> Any:
    named = [(f"p{number}", it) for number, it in enumerate(trained)]
    optimizer = torch.optim.SGD(trained, lr=1.0)
    return hvd.DistributedOptimizer(optimizer, named, gradient_as_bucket_view=True, **more)


def backward(trained: list[torch.nn.Parameter], values: list[torch.Tensor]) -> None:
    """Give the parameters gradients of exactly these values."""
    sum((it * value.to(DEVICE)).sum() for it, value in zip(trained, values, strict=True)).backward()  # type: ignore[union-attr]


def check_bits(dtype: torch.dtype, set_to_none: bool, more: dict[str, Any]) -> None:
    """Check that reduced gradients equal those of the same tensors in host memory."""
    trained = parameters(dtype)
    optimizer, before = wrapped(trained, **more), direct_batches()
    predivide = more.get("gradient_predivide_factor", 1.0)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=set_to_none)
        values = gradients(dtype, step)
        backward(trained, values)
        for number, (it, value) in enumerate(zip(trained, values, strict=True)):
            wanted = hvd.allreduce(
                value, name=f"wanted.{number}", op=more.get("op", hvd.Average), prescale_factor=1 / predivide,
                postscale_factor=predivide,
            )  # fmt: skip
            assert it.grad is not None
            assert torch.equal(it.grad.cpu(), wanted), (dtype, set_to_none, more, step, number)
        optimizer.step()
    # The first batches may only have shown that the ranks share the GPU.
    assert direct_batches() - before >= STEPS - 2, (direct_batches(), before)


def run_checks() -> None:
    """Check every option, then train in two worlds, one after the other."""
    options: list[dict[str, Any]] = [{}, {"op": hvd.Sum}, {"gradient_predivide_factor": 4.0}, {"groups": 2}]
    for dtype in (torch.float32, torch.bfloat16):
        for set_to_none in (True, False):
            for more in options:
                check_bits(dtype, set_to_none, more)
    trained = parameters(torch.float32)
    optimizer = wrapped(trained)
    for turn in range(2):
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=False)
            backward(trained, gradients(torch.float32, step))
            optimizer.step()
        kept = [it.grad.clone() for it in trained if it.grad is not None]
        hvd.shutdown()
        assert all(torch.equal(it.grad, grad) for it, grad in zip(trained, kept, strict=True))  # type: ignore[arg-type]
        if turn == 0:
            hvd.init()
    print("all checks passed", flush=True)


def run_loss() -> None:
    """Kill a rank in the middle of a step, while the streams of the others wait for it. The other ranks continue."""
    victim = int(sys.argv[2])
    trained = parameters(torch.float32)
    optimizer = wrapped(trained)
    # Copied beforehand, because a copy would wait for the GPU.
    values = [it.to(DEVICE) for it in gradients(torch.float32, 0)]

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        backward(trained, values)
        optimizer.step()

    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    assert direct_batches() > 0
    hvd.barrier()
    if victim == RANK:
        torch.cuda._sleep(int(20e9))
        step()  # launched behind work of ten seconds
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    text = ""
    try:
        step()
        torch.cuda.synchronize()  # returns once the loss is noticed
        step()
    except hvd.HorovodInternalError as error:
        text = str(error)
    assert f"rank {victim}" in text, text
    torch.cuda.synchronize()
    took = time.monotonic() - began
    hvd.shutdown()
    for it in trained:
        assert it.grad is not None
        it.grad.zero_()  # the memory is still valid on this rank
    torch.cuda.synchronize()
    print(f"lost in {took:.2f} s", flush=True)


{"checks": run_checks, "loss": run_loss}[sys.argv[1]]()
