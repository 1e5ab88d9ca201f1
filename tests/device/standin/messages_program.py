# SPDX-License-Identifier: Apache-2.0
"""Program of each rank of test_standin_messages.py: messages between tensors that count as tensors of a GPU."""

import os
import random
import signal
import sys
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gpu import GpuError
from torch_places import begin, current, gpu, on_cpu

from horovod.torch.distributed.errors import ProcessGroupError

Tensor = torch.Tensor
_SIZES = (0, 1, 700, 40_000, 120_000)  # the last one needs more pieces than there are slots


def ends() -> tuple[int, int, int]:
    """Return this rank, its right neighbour and its left one."""
    rank, size = dist.get_rank(), dist.get_world_size()
    return rank, (rank + 1) % size, (rank - 1) % size


def message(sender: int, tag: int, count: int) -> Tensor:
    return torch.arange(float(count)).add(1000 * sender + tag)


def channel() -> Any:
    return dist.distributed_c10d._get_default_group()._channel  # type: ignore[attr-defined]


def finish() -> None:
    dist.destroy_process_group()
    left = {kind: count for kind, count in gpu.live().items() if kind in ("mapped", "memory") and count}
    assert not left, left
    print("all messages came", flush=True)


def run_ring(seed: str) -> None:
    """Send in any order of tags, from late streams, partly from and to the host, with and without collectives."""
    begin()
    rank, right, left = ends()
    dice = random.Random(seed)  # gives equal numbers on all ranks
    streams = [gpu.stream(), gpu.stream()]
    for turn in range(6):
        plan = [(tag, dice.choice(_SIZES), dice.random() < 0.25, dice.random() < 0.25) for tag in range(8)]
        order = dice.sample(plan, len(plan))
        sent, received = [], []
        for tag, count, from_host, _ in plan:
            current.stream = streams[tag % 2]
            tensor, late = torch.full((count,), -1.0), message(rank, tag, count)
            if from_host:
                on_cpu.add(tensor.data_ptr())
                tensor.copy_(late)
            elif count:
                gpu.copy(tensor.data_ptr(), late.data_ptr(), late.nbytes, current.stream, delay_s=0.002)
            sent.append((dist.isend(tensor, right, tag=tag), tensor, late))
        total = torch.full((500,), float(rank))
        sums = dist.all_reduce(total, async_op=True) if turn % 2 else None
        for tag, count, _, to_host in order:
            current.stream = streams[(tag + 1) % 2]
            buffer = torch.full((count,), -2.0)
            if to_host:
                on_cpu.add(buffer.data_ptr())
            received.append((dist.irecv(buffer, left, tag=tag), buffer, message(left, tag, count)))
        for work, buffer, expected in received:
            work.wait()
            assert torch.equal(buffer, expected)
        for work, *_ in sent:
            work.wait()
        if sums is not None:
            sums.wait()
            assert total[0] == sum(range(dist.get_world_size()))
        on_cpu.clear()
    current.stream = 0
    for stream in streams:
        gpu.synchronize(stream)
        gpu.destroy(stream)
    finish()


def run_circle() -> None:
    """Check that a message and other launched operations never wait for each other."""
    begin(timeout_s=8)
    rank = dist.get_rank()
    total, there, back = torch.full((900,), float(rank)), torch.full((700,), 5.0), torch.zeros(700)
    dist.all_reduce(torch.ones(1))
    for _ in range(3):
        if rank == 0:
            sums = dist.all_reduce(total, async_op=True)
            dist.recv(back, 1)
            dist.send(back + 1, 1)
            sums.wait()
        else:
            dist.send(there, 0)
            dist.recv(back, 0)
            assert back[0] == 6
            dist.all_reduce(total)
        total.fill_(float(rank))
    # A receive posted long before its message, with collectives in between that the sender runs first.
    if rank == 0:
        early = dist.irecv(back, 1)
        for _ in range(5):
            dist.all_reduce(total)
        early.wait()
        assert back[0] == 7
    else:
        for _ in range(5):
            dist.all_reduce(total)
        dist.send(torch.full((700,), 7.0), 0)
    finish()


def run_both_first() -> None:
    """Let all pairs connect at the same time, while both ends of each pair send."""
    begin(timeout_s=10)
    rank, size = dist.get_rank(), dist.get_world_size()
    others = [other for other in range(size) if other != rank]
    random.Random(rank).shuffle(others)
    sent = [dist.isend(message(rank, 3, 5000), other, tag=3) for other in others]
    buffers = {other: torch.zeros(5000) for other in others}
    for other in reversed(others):
        dist.recv(buffers[other], other, tag=3)
    for work in sent:
        work.wait()
    for other, buffer in buffers.items():
        assert torch.equal(buffer, message(other, 3, 5000))
    finish()


def run_forgotten() -> None:
    """Check that a send works even if the caller never waits for it."""
    begin()
    rank, right, left = ends()
    buffer = torch.zeros(700)
    for turn in range(60):
        dist.isend(message(rank, turn, 700), right)
        dist.recv(buffer, left)
        assert torch.equal(buffer, message(left, turn, 700))
    dist.barrier()  # the last messages are on their way
    assert len(channel()._forgotten) < 10, len(channel()._forgotten)
    finish()


def run_itself() -> None:
    """Check the engine's messages from a rank to itself, which torch does not offer."""
    begin()
    world = channel().world
    for devices in ((0, 0), (0, -1), (-1, 0)):
        there, here = message(dist.get_rank(), 1, 3000), torch.zeros(3000)
        handles = [
            world.recv(dist.get_rank(), 9, here.data_ptr(), here.nbytes, devices[1], 0),
            world.send(dist.get_rank(), 9, there.data_ptr(), there.nbytes, devices[0], 0),
        ]
        for handle in handles:
            world.wait(handle)
            world.release(handle)
        assert torch.equal(here, there)
    finish()


def run_mismatch() -> None:
    """Check that different message sizes fail on the two ranks only."""
    begin()
    rank, right, left = ends()
    for _ in range(2):
        exchange = dist.send if rank == 0 else dist.recv
        with pytest.raises(ProcessGroupError, match="Mismatched message sizes"):
            exchange(torch.ones(5 + rank), right)  # with two ranks, both neighbours are the other rank
        sent = dist.isend(message(rank, 1, 400), right)
        buffer = torch.zeros(400)
        dist.recv(buffer, left)
        assert torch.equal(buffer, message(left, 1, 400))
        sent.wait()
    finish()


def run_departure() -> None:
    """Check that a rank may leave as soon as its last message is on its way."""
    begin()
    rank = dist.get_rank()
    if rank == 0:
        dist.send(message(0, 1, 40_000), 1)
    else:
        buffer = torch.zeros(40_000)
        dist.recv(buffer, 0)
        assert torch.equal(buffer, message(0, 1, 40_000))
    finish()


def run_unfinished() -> None:
    """Let rank 1 leave without waiting for its send. Ranks 0 and 2 continue, and earlier messages arrive."""
    begin()
    group = dist.new_group([0, 2])
    rank = dist.get_rank()
    if rank == 1:
        dist.isend(message(1, 1, 40_000), 0)
        dist.destroy_process_group()
        print("left", flush=True)
        return
    began = time.monotonic()
    if rank == 0:
        buffer = torch.zeros(40_000)
        heard = ""
        try:
            dist.recv(buffer, 1)
        except ProcessGroupError as error:
            heard = str(error)
        came = torch.equal(buffer, message(1, 1, 40_000))
        assert came or "rank 1 (on host 'localhost') called shutdown or exited" in heard, heard
    assert time.monotonic() - began < 10
    total = torch.ones(10)
    dist.all_reduce(total, group=group)
    assert total[0] == 2
    print("went on", flush=True)


def exchange_until_the_gpu_ends() -> None:
    rank, right, left = ends()
    buffer = torch.zeros(40_000)
    for turn in range(1000):
        if turn == 5 and rank == 1:
            gpu.fail("cuEventQuery=700@9")
        try:
            sent = dist.isend(message(rank, turn, 40_000), right)
            dist.recv(buffer, left)
            sent.wait()
        except GpuError:  # the test's own call failed first; the engine reports the error in the next turn
            pass


def run_fault() -> None:
    """Make the GPU of rank 1 fail in the middle of a message."""
    begin(timeout_s=60)
    began = time.monotonic()
    with pytest.raises(ProcessGroupError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        exchange_until_the_gpu_ends()
    dist.destroy_process_group()
    print(f"heard in {time.monotonic() - began:.1f} s", flush=True)


def exchange_until_the_end(signal_name: str) -> None:
    """Exchange messages until rank 1 ends itself in the middle of one."""
    rank, right, left = ends()
    buffer, tensor = torch.zeros(40_000), torch.zeros(40_000)
    for turn in range(100_000):
        if turn == 50 and rank == 1:
            dist.isend(tensor, right)
            os.kill(os.getpid(), signal.Signals[signal_name])
        sent = dist.isend(tensor, right)
        dist.recv(buffer, left)
        sent.wait()
        last_turn[0] = time.monotonic()


last_turn = [0.0]


def run_end(signal_name: str) -> None:
    """Kill or stop rank 1."""
    begin(timeout_s=60)
    with pytest.raises(ProcessGroupError):
        exchange_until_the_end(signal_name)
    heard = time.monotonic() - last_turn[0]
    dist.destroy_process_group()
    print(f"heard in {heard:.1f} s; mapped: {gpu.live()['mapped']}", flush=True)


globals()[f"run_{sys.argv[1]}"](*sys.argv[2:])
