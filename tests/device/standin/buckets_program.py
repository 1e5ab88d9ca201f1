# SPDX-License-Identifier: Apache-2.0
"""Program of each rank of test_standin_buckets.py: DistributedOptimizer on parameters that count as a GPU's.

They are torch's CPU tensors, because the stand-in's memory is host memory too. Only code that uses torch.cuda is
replaced.
"""

import ctypes
import gc
import json
import sys
from typing import Any

import numpy as np
import torch
from gpu import Gpu

import horovod.torch as hvd
from horovod._engine import Region
from horovod.common.context import default_context
from horovod.torch import cuda_direct, direct
from horovod.torch.gradients import buckets, gpu_memory
from horovod.torch.gradients.reducer import GradientReducer

gpu = Gpu()
STEPS = 6


class StandinWorld(cuda_direct.DeviceWorld):
    def _order(self) -> None:
        super()._order()
        gpu.synchronize()  # torch runs its next operation at once, not on a stream


class OnStandin(cuda_direct.DeviceCollectives):
    """Collectives on a device that also accept tensors that torch places on the host."""

    def start_batch(self, *arguments: Any) -> Any:
        return direct_host.start_batch(*arguments)


def over(region: Region, device: torch.device) -> torch.Tensor:
    raw: Any = (ctypes.c_uint8 * region.nbytes).from_address(region.address)
    raw.region = region
    return torch.from_numpy(np.frombuffer(raw, np.uint8))


def watch_by_hand(reducer: GradientReducer, name: str, parameter: torch.Tensor) -> None:
    watch(reducer, name, parameter)
    reducer._table.leave_to_caller(len(list(reducer._gradients)) - 1)


direct_host: Any = direct.host
watch = GradientReducer.watch


def pretend() -> None:
    """Treat all gradients from now on as a GPU's."""
    GradientReducer.watch = watch_by_hand  # type: ignore[method-assign]
    buckets.is_on_gpu = lambda parameter: True
    gpu_memory.tensor_over = over
    cuda_direct.current_stream = lambda device: 0
    cuda_direct.refuse_capture = lambda: None
    cuda_direct.DeviceWorld = StandinWorld  # type: ignore[misc]
    torch.cuda.current_device = lambda: 0
    direct.host = OnStandin(default_context, direct_host)


def model() -> torch.nn.Sequential:
    torch.manual_seed(3)
    layers = [torch.nn.Linear(7, 300), torch.nn.Tanh(), torch.nn.Linear(300, 300), torch.nn.Linear(300, 5)]
    net = torch.nn.Sequential(*layers)
    net[2].bias.data = net[2].bias.data.bfloat16()
    return net


def loss(net: torch.nn.Sequential, step: int) -> torch.Tensor:
    torch.manual_seed(100 * step + hvd.rank())
    hidden = torch.tanh(net[0](torch.randn(8, 7)))
    hidden = torch.nn.functional.linear(hidden, net[2].weight, net[2].bias.float())
    return net[3](hidden).square().mean()


def train(net: torch.nn.Sequential, optimizer: Any, steps: range, set_to_none: bool) -> None:
    for step in steps:
        optimizer.zero_grad(set_to_none=set_to_none)
        loss(net, step).backward()
        optimizer.step()


def wrapped(net: torch.nn.Sequential, **more: Any) -> Any:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return hvd.DistributedOptimizer(optimizer, net.named_parameters(), **more)


def direct_batches() -> int:
    return int(json.loads(default_context.world.describe())["direct_batches"])


def same(net: torch.nn.Sequential, wanted: list[torch.Tensor], what: object) -> None:
    for got, expected in zip(net.parameters(), wanted, strict=True):
        assert torch.equal(got.detach(), expected), (what, got.flatten()[:3], expected.flatten()[:3])


def results(net: torch.nn.Sequential) -> list[torch.Tensor]:
    return [it.detach().clone() for it in net.parameters()]


def run_training(shares: str) -> None:
    """Check that training gives the bits of training on the host, whatever becomes of gradients between steps."""
    hvd.init()
    options: list[dict[str, Any]] = [{}, {"op": hvd.Sum}, {"gradient_predivide_factor": 3.0}]
    wanted = []
    for more in options:
        net = model()
        train(net, wrapped(net, **more), range(STEPS), True)
        wanted.append(results(net))
    pretend()
    for more, expected in zip(options, wanted, strict=True):
        for set_to_none in (True, False):
            check_training(more, set_to_none, expected, shares == "shared")
    if shares == "shared":
        check_worlds(wanted[0])
    hvd.shutdown()
    gc.collect()  # an optimizer and its hooks reference each other
    assert not any(gpu.live()[kind] for kind in ("memory", "mapped", "streams")), gpu.live()
    print("all checks passed", flush=True)


def check_training(more: dict[str, Any], set_to_none: bool, wanted: list[torch.Tensor], shared: bool) -> None:
    net, before = model(), direct_batches()
    optimizer = wrapped(net, **more, gradient_as_bucket_view=True)
    train(net, optimizer, range(STEPS // 2), set_to_none)
    addresses = [it.grad.data_ptr() for it in net.parameters() if it.grad is not None]
    train(net, optimizer, range(STEPS // 2, STEPS), set_to_none)
    same(net, wanted, (more, set_to_none))
    # The first step shows that ranks share the GPU; from then on no gradient is copied between them.
    assert (direct_batches() - before >= 2 * (STEPS - 1)) == shared, direct_batches() - before
    if shared:
        assert addresses == [it.grad.data_ptr() for it in net.parameters() if it.grad is not None]


def check_worlds(wanted: list[torch.Tensor]) -> None:
    """Train half of the steps in one world and half in the next. Gradients of the first world stay valid and move."""
    net = model()
    optimizer = wrapped(net, gradient_as_bucket_view=True)
    train(net, optimizer, range(STEPS // 2), False)
    grads = [it.grad.clone() for it in net.parameters() if it.grad is not None]
    hvd.shutdown()
    for parameter, grad in zip(net.parameters(), grads, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, grad)
    hvd.init()
    train(net, optimizer, range(STEPS // 2, STEPS), False)
    same(net, wanted, "two worlds")
    assert direct_batches() >= 2


run_training(*sys.argv[1:])
