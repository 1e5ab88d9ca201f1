# SPDX-License-Identifier: Apache-2.0
"""What each rank of test_standin_groups.py runs: process groups that overlap, whose operations NCCL launches."""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch_places import begin, counted, current, gpu

from horovod.torch.distributed.errors import ProcessGroupError

Tensor = torch.Tensor
Check = Callable[[], None]


def whole_numbers(rank: int, turn: int, count: int, dtype: torch.dtype = torch.int32) -> Tensor:
    generator = torch.Generator().manual_seed(100 * turn + rank)
    return torch.randint(0, 100, (count,), generator=generator).to(dtype)


def expect(got: Tensor, wanted: Tensor, what: object) -> None:
    assert torch.equal(got, wanted), (what, got[:5], wanted[:5])


class Group:
    """A group that this rank belongs to, and operations on it with what must come out."""

    def __init__(self, members: list[int], group: Any) -> None:
        self.members, self.group = members, group

    def _everyones(self, turn: int, count: int, dtype: torch.dtype = torch.int32) -> list[Tensor]:
        return [whole_numbers(member, turn, count, dtype) for member in self.members]

    def all_reduce(self, turn: int, count: int) -> tuple[Any, Check]:
        tensor = whole_numbers(dist.get_rank(), turn, count)
        work = dist.all_reduce(tensor, group=self.group, async_op=True)
        return work, lambda: expect(tensor, sum(self._everyones(turn, count)), (self.members, turn))  # type: ignore[arg-type]

    def all_gather(self, turn: int, count: int) -> tuple[Any, Check]:
        parts = [torch.zeros(count, dtype=torch.int32) for _ in self.members]
        work = dist.all_gather(parts, whole_numbers(dist.get_rank(), turn, count), group=self.group, async_op=True)
        wanted = torch.cat(self._everyones(turn, count))
        return work, lambda: expect(torch.cat(parts), wanted, (self.members, turn))

    def broadcast(self, turn: int, count: int) -> tuple[Any, Check]:
        root = self.members[turn % len(self.members)]
        tensor = whole_numbers(dist.get_rank(), turn, count)
        work = dist.broadcast(tensor, root, group=self.group, async_op=True)
        return work, lambda: expect(tensor, whole_numbers(root, turn, count), (self.members, turn))

    def another_way(self, turn: int, count: int) -> tuple[Any, Check]:
        """NCCL knows no int16."""
        tensor = whole_numbers(dist.get_rank(), turn, count, torch.int16)
        work = dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.group, async_op=True)
        wanted = torch.stack(self._everyones(turn, count, torch.int16)).amax(0)
        return work, lambda: expect(tensor, wanted, (self.members, turn))


def overlapping() -> list[Group | None]:
    """The same for all ranks, with None for those that this one does not belong to."""
    everybody = list(range(dist.get_world_size()))
    chosen = [everybody, everybody, everybody[:-1], everybody[1:], [everybody[0], everybody[-1]], everybody[1:-1]]
    groups: list[Group | None] = []
    for members in (it for it in chosen if len(it) > 1):
        group = dist.new_group(members)
        groups.append(Group(members, group) if dist.get_rank() in members else None)
    return groups


def run_orders(seed: str) -> None:
    """All ranks call the groups in one order, at a pace of their own, on streams of their own choice."""
    begin(timeout_s=15)
    groups = overlapping()
    program, own = random.Random(int(seed)), random.Random(1000 * int(seed) + dist.get_rank() + 1)
    streams = [gpu.stream(), gpu.stream(), 0]
    for _ in range(6):
        started: list[tuple[Any, Check]] = []
        for turn in range(30):
            group = program.choice(groups)
            kind = program.choice(["all_reduce", "all_reduce", "all_gather", "broadcast", "another_way"])
            count = program.choice([3, 700, 20_000])
            if group is None:
                continue
            current.stream = own.choice(streams)
            started.append(getattr(group, kind)(turn, count))
            if own.random() < 0.2:
                time.sleep(own.random() / 500)
            if own.random() < 0.1:
                own.choice(started)[0].wait()
        for work, _ in started:
            work.wait()
        for _, check in started:
            check()
    current.stream = 0
    for stream in streams[:2]:
        gpu.synchronize(stream)
        gpu.destroy(stream)
    assert counted("launches") > 50
    dist.destroy_process_group()
    assert counted("live") == 0
    print("all in order", flush=True)


def run_loss() -> None:
    """Rank 1 is killed while groups have operations under way. A group without it is used as before."""
    begin()
    everybody, pairs = Group([0, 1, 2], None), [[0, 1], [1, 2], [0, 2]]
    made = [Group(it, dist.new_group(it)) for it in pairs]
    mine = [everybody, *(it for it in made if dist.get_rank() in it.members)]
    for group in mine:
        work, check = group.all_reduce(1, 5000)
        work.wait()
        check()
    dist.barrier()
    if dist.get_rank() == 1:
        current.stream = gpu.stream()
        stuck = torch.zeros(1)
        gpu.copy(stuck.data_ptr(), stuck.data_ptr(), 4, current.stream, delay_s=100)
        for group in mine:
            group.all_reduce(0, 5000)[0].get_future()
        dist.barrier(everybody.group, async_op=True)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    works = [(group, group.all_reduce(9, 5000)) for group in mine for _ in range(3)]
    for group, (work, check) in works:
        try:
            work.wait()
            group.all_reduce(10, 50)[0].wait()
        except ProcessGroupError as error:
            assert "rank 1" in str(error) or "rank 0 was lost" in str(error), error
            assert 1 in group.members, error
        else:
            assert group.members == [0, 2]
            check()
    print(f"heard in {time.monotonic() - began:.1f} s", flush=True)
    left = mine[-1]
    for turn in range(5):
        work, check = left.all_reduce(turn, 5000)
        work.wait()
        check()
    dist.destroy_process_group()
    print(f"communicators left: {counted('live')}", flush=True)


if __name__ == "__main__":
    {"orders": run_orders, "loss": run_loss}[sys.argv[1]](*sys.argv[2:])
