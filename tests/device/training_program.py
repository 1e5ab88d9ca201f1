# SPDX-License-Identifier: Apache-2.0
"""Program of each rank of test_torch_cuda_training.py: training on a GPU that all share, and the loss of a rank."""

import os
import signal
import sys
import time
from typing import Any

import torch

import horovod.torch as hvd

hvd.init()
torch.cuda.set_device(0)
DEVICE = torch.device("cuda", 0)
SIZE, RANK = hvd.size(), hvd.rank()
BATCH, STEPS = 8, 6  # batch size and steps of each rank
torch.backends.cuda.matmul.allow_tf32 = False


def model(batch_norm: type[torch.nn.Module]) -> torch.nn.Sequential:
    torch.manual_seed(5)
    layers = [torch.nn.Linear(20, 400), torch.nn.ReLU(), torch.nn.Linear(400, 400), batch_norm(400)]  # type: ignore[call-arg]
    return torch.nn.Sequential(*layers, torch.nn.Linear(400, 3)).to(DEVICE)


def data(step: int, ranks: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(100 + step)
    inputs, targets = torch.randn(SIZE, BATCH, 20), torch.randn(SIZE, BATCH, 3)
    return inputs[ranks].flatten(0, 1).to(DEVICE), targets[ranks].flatten(0, 1).to(DEVICE)


def trained_alone() -> list[torch.Tensor]:
    net = model(torch.nn.BatchNorm1d)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        inputs, targets = data(step, list(range(SIZE)))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(inputs), targets).backward()
        optimizer.step()
    return [it.detach() for it in net.parameters()]


def check_training() -> None:
    """Check that ranks with shares of the batch and common statistics reach the weights of one process."""
    wanted = trained_alone()
    for more in ({}, {"gradient_as_bucket_view": True}, {"groups": 2}, {"compression": hvd.Compression.fp16}):
        net = model(hvd.SyncBatchNorm)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), net.named_parameters(), **more
        )
        hvd.broadcast_parameters(net.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        for step in range(STEPS):
            inputs, targets = data(step, [RANK])
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(net(inputs), targets).backward()
            optimizer.step()
        tolerance = 2e-2 if "compression" in more else 2e-4
        for got, expected in zip(net.parameters(), wanted, strict=True):
            torch.testing.assert_close(got.detach(), expected, rtol=tolerance, atol=tolerance)


def two_models() -> list[torch.nn.Module]:
    torch.manual_seed(5)
    return [torch.nn.Linear(20, 3).to(DEVICE) for _ in range(2)]


def loss_of_both(models: list[torch.nn.Module], step: int, ranks: list[int]) -> torch.Tensor:
    inputs, targets = data(step, ranks)
    losses = [torch.nn.functional.mse_loss(net(inputs), targets) for net in models]
    return losses[0] + losses[1]


def check_models_of_equal_names() -> None:
    """Check that two models with an optimizer each train with one backward() as in one process."""
    models, alone = two_models(), two_models()
    optimizers = [
        hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.05), net.named_parameters()) for net in models
    ]
    plain = torch.optim.SGD([it for net in alone for it in net.parameters()], lr=0.05)
    for step in range(STEPS):
        for optimizer in (*optimizers, plain):
            optimizer.zero_grad()
        loss_of_both(models, step, [RANK]).backward()
        loss_of_both(alone, step, list(range(SIZE))).backward()
        for optimizer in (*optimizers, plain):
            optimizer.step()
    for got, expected in zip(models, alone, strict=True):
        for mine, wanted in zip(got.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(mine, wanted, rtol=2e-4, atol=2e-4)


class LateGradient(torch.autograd.Function):
    """Identity whose gradient the GPU computes long after its kernels were queued."""

    @staticmethod
    def forward(_context: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(_context: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        torch.cuda._sleep(int(1e8))
        return gradient.clone()


def check_streams() -> None:
    """Check that gradients of several streams are reduced once all of them are ready, not only the last one."""
    # The gradients are so large that they are sent when the second is ready, while backward() continues.
    for more in ({"groups": 1}, {"gradient_as_bucket_view": True}):
        weights = {name: torch.nn.Parameter(torch.zeros(4 << 20, device=DEVICE)) for name in ("early", "late")}
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(weights.values(), lr=1.0), weights.items(), **more)
        other = torch.cuda.Stream()
        for step in range(3):
            optimizer.zero_grad()
            # Backward runs from the last to the first created tensor, so the slow gradient comes first.
            quick = (weights["late"] * float(RANK + 1)).sum()
            with torch.cuda.stream(other):
                other.wait_stream(torch.cuda.default_stream())
                slow = LateGradient.apply(weights["early"] * float(RANK + step)).sum()
            torch.cuda.current_stream().wait_stream(other)
            (quick + slow).backward()
            before = {name: weight.detach().clone() for name, weight in weights.items()}
            optimizer.step()
            mean = (SIZE - 1) / 2
            for name, wanted in (("early", mean + step), ("late", mean + 1)):
                got = before[name] - weights[name].detach()
                assert torch.all((got - wanted).abs() < 1e-4), (more, step, name, got[:3], wanted)


def check_sparse() -> None:
    table = torch.nn.Embedding(10, 4, sparse=True).to(DEVICE)
    torch.nn.init.zeros_(table.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), op=hvd.Sum
    )
    table(torch.tensor([RANK, 9], device=DEVICE)).sum().backward()
    optimizer.step()
    wanted = torch.zeros(10, 4)
    wanted[:SIZE] = -1
    wanted[9] = -SIZE
    torch.testing.assert_close(table.weight.detach().cpu(), wanted)


def check_sets() -> None:
    """Use sets that overlap, in another order on each rank and on separate streams, without a circular wait."""
    sets = [hvd.global_process_set, hvd.add_process_set(range(SIZE)[1:]), hvd.add_process_set(range(SIZE)[:-1])]
    mine = [number for number, it in enumerate(sets) if it.included()]
    streams = [torch.cuda.Stream() for _ in sets]
    for turn in range(20):
        torch.manual_seed(1000 * turn + RANK)
        results = []
        for at in [mine[place] for place in torch.randperm(len(mine)).tolist()]:
            with torch.cuda.stream(streams[at]):
                tensor = torch.full((1 << 19,), float(RANK + turn), device=DEVICE)
                handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name=f"{at}.{turn}", process_set=sets[at])
                results.append((at, tensor, handle))
        for at, tensor, handle in results:
            hvd.synchronize(handle)
            assert torch.all(tensor == sum(rank + turn for rank in sets[at].ranks)), (turn, at, tensor[:3])


def check_join() -> None:
    """Check that ranks with fewer batches contribute zeros after they have run out."""
    for turn in range(3 + RANK):
        tensor = torch.ones(1 << 19, device=DEVICE)
        present = [rank for rank in range(SIZE) if turn < 3 + rank]
        result = hvd.allreduce(tensor, op=hvd.Sum, name=f"uneven.{turn}")
        assert torch.all(result == len(present)), (turn, result[:3])
    assert hvd.join() == SIZE - 1


def run_checks() -> None:
    check_training()
    check_models_of_equal_names()
    check_sparse()
    if SIZE > 2:
        check_sets()
    check_join()
    print("all checks passed", flush=True)
    hvd.shutdown()


def run_loss() -> None:
    """Kill the last rank while the streams of the others wait for it. The others continue."""
    tensor = torch.ones(16 << 20, device=DEVICE)
    for _ in range(3):
        hvd.allreduce_(tensor, name="before")
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    hvd.barrier()
    if RANK == SIZE - 1:
        torch.cuda._sleep(int(20e9))
        hvd.allreduce_(tensor, name="late")  # launched behind work of ten seconds
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    text = ""
    try:
        hvd.allreduce_(tensor, name="late")
        torch.cuda.synchronize()  # returns once the loss is noticed
        hvd.allreduce_(tensor, name="after")
    except hvd.HorovodInternalError as error:
        text = str(error)
    assert f"rank {SIZE - 1}" in text, text
    torch.cuda.synchronize()
    took = time.monotonic() - began
    assert float((torch.ones(1 << 20, device=DEVICE) + 1).sum()) == 2 << 20
    hvd.shutdown()
    given_back = torch.cuda.mem_get_info()[0] - free
    print(f"lost in {took:.2f} s, {given_back >> 20} MB given back", flush=True)


def run_wrong_kernel() -> None:
    """Make a kernel of the last rank read invalid memory, after which CUDA refuses all calls of that process."""
    tensor = torch.ones(4 << 20, device=DEVICE)
    hvd.allreduce_(tensor, name="before")
    torch.cuda.synchronize()
    hvd.barrier()
    if RANK == SIZE - 1:
        torch.ones(4, device=DEVICE)[torch.tensor([1 << 30], device=DEVICE)]
    began = time.monotonic()
    try:
        for turn in range(1000):
            hvd.allreduce_(tensor, name=f"turn {turn % 4}")
    except hvd.HorovodInternalError as error:
        print(f"heard in {time.monotonic() - began:.2f} s: {error}", flush=True)
        if RANK == SIZE - 1:
            raise
    assert float((torch.ones(1 << 20, device=DEVICE) + 1).sum()) == 2 << 20
    hvd.shutdown()


def run_streams() -> None:
    check_streams()
    print("all checks passed", flush=True)
    hvd.shutdown()


{"checks": run_checks, "streams": run_streams, "loss": run_loss, "wrong kernel": run_wrong_kernel}[sys.argv[1]]()
