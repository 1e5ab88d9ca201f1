# SPDX-License-Identifier: Apache-2.0
"""Program of each rank of test_torch_distributed_cuda.py: the horovod backend on one GPU that all ranks share.

The first argument names the part to run. With `cpu` as the second, parts that need no GPU run on the CPU.
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from distributed_checks import Checks, of_rank, same
from group_counters import told_by
from overlapping_groups import overlapping, run_program
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _get_default_store
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from horovod._engine import EngineError
from horovod.torch.distributed import ProcessGroupError

DEVICE = torch.device("cpu") if sys.argv[2:] == ["cpu"] else torch.device("cuda", 0)
LARGE = 1 << 19  # elements, enough to use the memory of the GPU
BATCH, STEPS = 8, 5  # batch size and steps of each rank
torch.backends.cuda.matmul.allow_tf32 = False


def raises(text: str, call: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError, match=text):
        call()


# Streams


def check_streams() -> None:
    """Check that operations wait for the stream of their inputs, and that the stream that waits sees their results."""
    rank, size = dist.get_rank(), dist.get_world_size()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for turn in range(10):
        with torch.cuda.stream(streams[0]):
            tensor = torch.zeros(LARGE if turn % 2 else 100, device=DEVICE)
            gathered = torch.zeros(size * len(tensor), device=DEVICE)
            torch.cuda._sleep(2_000_000)  # long enough that the fill below is not done when the operations are called
            tensor.fill_(float(rank + turn))
            works = [dist.all_gather_into_tensor(gathered, tensor.clone(), async_op=True)]
            works.append(dist.all_reduce(tensor, async_op=True))
        with torch.cuda.stream(streams[1]):
            for work in works:
                work.wait()
            total, all_of_them = tensor * 2, gathered.clone()
        streams[1].synchronize()
        same(total, torch.full((len(tensor),), 2.0 * sum(range(turn, size + turn))))
        same(all_of_them, torch.arange(float(size)).add(turn).repeat_interleave(len(tensor)))


def check_overlap() -> None:
    """Check that neither the call nor the wait blocks until the GPU is done, and that concurrent work is right."""
    size = dist.get_world_size()
    tensor, other = torch.ones(LARGE, device=DEVICE), torch.ones(500, 500, device=DEVICE)
    dist.all_reduce(tensor.clone())
    other @ other  # the first product allocates memory, for which the GPU must be idle
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda._sleep(int(1e9))  # about half a second
    began = time.perf_counter()
    work = dist.all_reduce(tensor, async_op=True)
    product = other @ other
    work.wait()
    took = time.perf_counter() - began
    # The staged transport blocks the host until the GPU reaches the tensor.
    if os.environ.get("HOROVOD_GPU_TRANSPORT") != "staged":
        assert took < 0.2, f"{took} s"
    while not work.is_completed():
        pass
    same(tensor, torch.full((LARGE,), float(size)))
    same(product, torch.full((500, 500), 500.0))
    # Memory that torch frees while an operation is in flight must not be reused before the operation is done.
    side = torch.cuda.Stream()
    for _ in range(30):
        given = torch.ones(LARGE, device=DEVICE)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            dist.all_reduce(given, async_op=True)
        del given
        torch.full((LARGE,), -1.0, device=DEVICE)
    kept = [torch.full((LARGE,), float(index), device=DEVICE) for index in range(10)]
    for one in kept:
        dist.all_reduce(one, dist.ReduceOp.MAX)
    for index, one in enumerate(kept):
        same(one, torch.full((LARGE,), float(index)))


def check_futures() -> None:
    """Check that a callback's stream sees the result, whatever thread the callback runs on."""
    total = sum(of_rank(rank, (LARGE,)) for rank in range(dist.get_world_size()))
    for _ in range(5):
        tensor = of_rank(dist.get_rank(), (LARGE,)).to(DEVICE)
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            torch.cuda._sleep(2_000_000)
            future = dist.all_reduce(tensor, async_op=True).get_future()
            tripled = future.then(lambda done: done.value()[0] * 3)
        same(tripled.wait(), 3 * total)


def check_capture() -> None:
    """Check that no operation can be captured, and that operations work afterwards."""
    tensor, rows = torch.ones(4, device=DEVICE), torch.ones(4 * dist.get_world_size(), device=DEVICE)
    calls: list[Callable[[], Any]] = [
        partial(dist.all_reduce, tensor),
        partial(dist.broadcast, tensor, 0),
        partial(dist.all_gather_into_tensor, rows, tensor),
        partial(dist.reduce_scatter_tensor, tensor, rows),
        partial(dist.all_to_all_single, rows, rows.clone()),
        partial(dist.send, tensor, (dist.get_rank() + 1) % dist.get_world_size()),
        dist.barrier,
    ]
    for call in calls:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tensor.add_(0)
            raises("cannot be captured in a CUDA graph", call)
    dist.all_reduce(tensor)
    same(tensor, torch.full((4,), float(dist.get_world_size())))


# Training


def network() -> torch.nn.Sequential:
    torch.manual_seed(3)
    layers = [torch.nn.Linear(inputs, outputs) for inputs, outputs in pairwise((16, 512, 512, 512, 4))]
    return torch.nn.Sequential(
        layers[0], torch.nn.ReLU(), layers[1], torch.nn.Tanh(), torch.nn.Sequential(layers[2]), layers[3]
    ).to(DEVICE)


def batch(step: int, ranks: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(100 + step)
    size = dist.get_world_size()
    inputs, targets = torch.randn(size, BATCH, 16), torch.randn(size, BATCH, 4)
    return inputs[ranks].flatten(0, 1).to(DEVICE), targets[ranks].flatten(0, 1).to(DEVICE)


def train(model: Any, ranks: list[int]) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        inputs, targets = batch(step, ranks)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return [whole(parameter.detach()) for parameter in model.parameters()]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def alike(parameters: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float = 2e-5) -> None:
    for got, wanted in zip(parameters, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


def check_ddp(alone: list[torch.Tensor]) -> None:
    """Check that ranks with a share of the batch each reach the weights of one process with the whole batch."""
    mine = [dist.get_rank()]
    device_ids = None if DEVICE.type == "cpu" else [0]
    for more in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0.1}, {"static_graph": True}):
        alike(train(DistributedDataParallel(network(), device_ids=device_ids, **more), mine), alone)
    model = DistributedDataParallel(network(), device_ids=device_ids)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    alike(train(model, mine), alone, tolerance=2e-2)


def check_fsdp(alone: list[torch.Tensor]) -> None:
    mesh = init_device_mesh(DEVICE.type, (dist.get_world_size(),))
    model = network()
    for part in (model[2], model[4]):
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    alike(train(model, [dist.get_rank()]), alone)
    folder: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, 0)
    checkpoint.save(model.state_dict(), checkpoint_id=folder[0])
    fresh = network()
    fully_shard(fresh, mesh=mesh)
    state = fresh.state_dict()
    checkpoint.load(state, checkpoint_id=folder[0])
    fresh.load_state_dict(state)
    alike([whole(it.detach()) for it in fresh.parameters()], [whole(it.detach()) for it in model.parameters()], 0.0)


def check_dtensor() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(DEVICE.type, (size,))
    table = torch.arange(float(4 * size * 6)).view(4 * size, 6).to(DEVICE)
    sharded = distribute_tensor(table, mesh, [Shard(0)])
    same(sharded.to_local(), table[4 * rank : 4 * rank + 4].cpu())
    same(sharded.redistribute(mesh, [Replicate()]).to_local(), table.cpu())
    same(sharded.redistribute(mesh, [Shard(1)]).full_tensor(), table.cpu())
    same(
        (sharded @ distribute_tensor(table.t().contiguous(), mesh, [Replicate()])).full_tensor(),
        (table @ table.t()).cpu(),
    )


def run_collectives() -> None:
    checks = Checks(DEVICE, LARGE)
    checks.all()
    if DEVICE.type == "cuda":
        with torch.cuda.stream(torch.cuda.Stream()):
            checks.all()
        check_streams()
        check_overlap()
        check_futures()
        check_capture()


def run_training() -> None:
    alone = train(network(), list(range(dist.get_world_size())))
    check_ddp(alone)
    check_fsdp(alone)
    check_dtensor()


def run_loss() -> None:
    """Kill the last rank in the middle of an operation. The others get an error and can use their GPU again."""
    size, rank = dist.get_world_size(), dist.get_rank()
    tensor = torch.ones(16 << 20, device=DEVICE)
    for _ in range(3):
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
    dist.barrier()
    if rank == size - 1:
        if DEVICE.type == "cuda":
            torch.cuda._sleep(int(20e9))
            dist.all_reduce(tensor)  # launched behind work of ten seconds
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(ProcessGroupError, match=f"rank {size - 1}"):
        keep_reducing(tensor)
    await_device()
    assert float((torch.ones(1 << 20, device=DEVICE) + 1).sum()) == 2 << 20
    print(f"lost in {time.monotonic() - began:.2f} s", flush=True)


def run_groups() -> None:
    """Use groups that overlap in one order, then kill the last rank while all of them have operations in flight."""
    on_gpu = DEVICE.type == "cuda"
    streams = [torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.default_stream()] if on_gpu else []
    groups = overlapping(DEVICE)
    run_program(groups, 1, lambda dice: torch.cuda.stream(dice.choice(streams)) if on_gpu else nullcontext())
    await_device()
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    mine = [(it, torch.ones(20_000, device=DEVICE)) for it in groups if it is not None]
    await_device()
    dist.barrier()
    if on_gpu and rank == last:
        torch.cuda._sleep(int(20e9))
    for work in [dist.all_reduce(tensor, group=it.group, async_op=True) for it, tensor in mine]:
        work.wait()  # launched; on the last rank behind work of ten seconds
    # A collective could end on the last rank first and then fail on the others, so synchronise through the store.
    store = _get_default_store()
    store.set(f"launched {rank}", "")
    if rank == last:
        store.wait([f"launched {other}" for other in range(last)])
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    for group, tensor in mine:
        with pytest.raises(ProcessGroupError) if last in group.members else nullcontext():
            keep_reducing(tensor, group.group)
    assert float((torch.ones(1 << 20, device=DEVICE) + 1).sum()) == 2 << 20
    print(f"lost in {time.monotonic() - began:.2f} s", flush=True)


def run_messages() -> None:
    """Send long messages to the right neighbour behind work of a stream, then kill the last rank during a message."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    right, left = (rank + 1) % (last + 1), (rank - 1) % (last + 1)
    count = 12 << 20  # elements, more than fit into the slots between two ranks

    def begin(turn: int) -> tuple[list[Any], torch.Tensor]:
        if DEVICE.type == "cuda":
            torch.cuda._sleep(2_000_000)
        given = torch.full((count,), float(rank + turn), device=DEVICE)
        taken = torch.zeros(count, device=DEVICE)
        ends = [dist.P2POp(dist.isend, given, right), dist.P2POp(dist.irecv, taken, left)]
        return list(dist.batch_isend_irecv(ends)), taken

    def go_round(turns: range) -> None:
        for turn in turns:
            works, taken = begin(turn)
            for work in works:
                work.wait()
            same(taken, torch.full((count,), float(left + turn)))

    with torch.cuda.stream(torch.cuda.Stream()) if DEVICE.type == "cuda" else nullcontext():
        go_round(range(4))
    dist.barrier()  # all ranks have received their messages by now
    if rank == last:
        begin(4)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(ProcessGroupError, match=f"rank {last}"):
        go_round(range(4, 100))
    await_device()
    assert float((torch.ones(1 << 20, device=DEVICE) + 1).sum()) == 2 << 20
    print(f"lost in {time.monotonic() - began:.2f} s", flush=True)


def run_prompt() -> None:
    """Check that ranks exchange no messages for an operation over NCCL, and that it runs beside the caller's work."""
    rank, size = dist.get_rank(), dist.get_world_size()
    pair = dist.new_group()
    for group in (None, pair):
        dist.all_reduce(torch.ones(10, device=DEVICE), group=group)
    await_device()
    dist.barrier()
    before = [told_by(group) for group in (None, pair)]
    tensors = [torch.full((1000,), float(rank + turn), device=DEVICE) for turn in range(50)]
    works = [
        dist.all_reduce(tensor, group=(None, pair)[turn % 2], async_op=True) for turn, tensor in enumerate(tensors)
    ]
    for work in works:
        work.wait()
    for turn, tensor in enumerate(tensors):
        same(tensor, torch.full((1000,), float(sum(range(turn, size + turn)))))
    for was, group in zip(before, (None, pair), strict=True):
        now = told_by(group)
        assert now["prompt_batches"] - was["prompt_batches"] == 25, (was, now)
        assert now["control_messages"] == was["control_messages"], (was, now)
    # Work that the caller puts on its stream meanwhile does not wait for an operation that the caller has not waited
    # for.
    ready, sums, square = torch.cuda.Event(), torch.ones(1000, device=DEVICE), torch.ones(300, 300, device=DEVICE)
    product = square @ square  # the first product allocates memory, for which the GPU must be idle
    await_device()
    dist.barrier()
    if rank > 0:
        torch.cuda._sleep(int(2e9))  # about a second before this rank takes part
    late = dist.all_reduce(sums, async_op=True)
    torch.mm(square, square, out=product)
    ready.record()
    if rank == 0:
        ready.synchronize()
        assert not late.is_completed()
    late.wait()
    same(sums, torch.full((1000,), float(size)))
    same(product, torch.full((300, 300), 300.0))
    # Free memory while an operation on another stream is in flight.
    kept = []
    for turn in range(30):
        given = torch.full((LARGE,), float(turn), device=DEVICE)
        work = dist.all_reduce(given, dist.ReduceOp.MAX, async_op=True)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            work.wait()
            kept.append(given.clone())
        given.record_stream(side)  # torch requires this of programs; the backend records its own stream
        del given, work
        torch.full((LARGE,), -1.0, device=DEVICE)
    await_device()
    for turn, one in enumerate(kept):
        same(one, torch.full((LARGE,), float(turn)))


def do_something_else(limit_s: float) -> None:
    """Wait until the default group has ended, while its engine continues."""
    default: Any = dist.group.WORLD
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        time.sleep(0.1)
        default._channel.world.let_wait(DEVICE.index or 0, 0)


def run_absence() -> None:
    """Check that the group's time limit ends it when the last rank omits an operation that the others launched."""
    dist.destroy_process_group()
    dist.init_process_group("horovod", timeout=timedelta(seconds=4))
    tensor, last = torch.ones(1000, device=DEVICE), dist.get_world_size() - 1
    dist.all_reduce(tensor)
    await_device()
    dist.barrier()
    began = time.monotonic()
    if dist.get_rank() == last:
        with pytest.raises(EngineError, match="is not done with it"):
            do_something_else(30)
    else:
        with pytest.raises(ProcessGroupError, match="is not done with it"):
            keep_reducing(tensor)
    assert time.monotonic() - began < 20
    await_device()  # no work on the GPU waits any longer


def keep_reducing(tensor: torch.Tensor, group: Any = None) -> None:
    for _ in range(100):
        dist.all_reduce(tensor, group=group)
        await_device()


def await_device() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


RUNS = {
    "collectives": run_collectives,
    "training": run_training,
    "loss": run_loss,
    "groups": run_groups,
    "messages": run_messages,
    "prompt": run_prompt,
    "absence": run_absence,
}


def main() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
    bound = {"device_id": DEVICE} if DEVICE.type == "cuda" else {}
    dist.init_process_group("horovod", timeout=timedelta(seconds=40), **bound)  # type: ignore[arg-type]
    RUNS[sys.argv[1]]()
    if dist.is_initialized():
        dist.destroy_process_group()
    if sys.argv[1] == "collectives":
        dist.init_process_group("cpu:gloo,cuda:horovod", timeout=timedelta(seconds=40))
        Checks(DEVICE, LARGE).objects_and_barriers()
        Checks(DEVICE, LARGE).all_reduce()
        dist.destroy_process_group()
    print("all checks passed", flush=True)


main()
