# SPDX-License-Identifier: Apache-2.0
"""Process groups that overlap, called in one order by all ranks, on tensors of a GPU or of the stand-in for one."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist

Tensor = torch.Tensor
Check = Callable[[], None]


def whole_numbers(rank: int, turn: int, count: int, dtype: torch.dtype = torch.int32) -> Tensor:
    generator = torch.Generator().manual_seed(100 * turn + rank)
    return torch.randint(0, 100, (count,), generator=generator).to(dtype)


def expect(got: Tensor, wanted: Tensor, what: object) -> None:
    wrong = (got.cpu() != wanted).nonzero().flatten()
    assert not len(wrong), f"{what}: {len(wrong)} of {len(wanted)} differ, from {wrong[0]} to {wrong[-1]}"


class Group:
    """A group that contains this rank, and operations on it with their expected results."""

    def __init__(self, members: list[int], group: Any, device: torch.device) -> None:
        self.members, self.group, self.device = members, group, device

    def _mine(self, turn: int, count: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return whole_numbers(dist.get_rank(), turn, count, dtype).to(self.device)

    def _everyones(self, turn: int, count: int, dtype: torch.dtype = torch.int32) -> list[Tensor]:
        return [whole_numbers(member, turn, count, dtype) for member in self.members]

    def all_reduce(self, turn: int, count: int) -> tuple[Any, Check]:
        tensor = self._mine(turn, count)
        work = dist.all_reduce(tensor, group=self.group, async_op=True)
        return work, lambda: expect(tensor, sum(self._everyones(turn, count)), (self.members, turn))  # type: ignore[arg-type]

    def all_gather(self, turn: int, count: int) -> tuple[Any, Check]:
        parts = [torch.zeros(count, dtype=torch.int32, device=self.device) for _ in self.members]
        work = dist.all_gather(parts, self._mine(turn, count), group=self.group, async_op=True)
        wanted = torch.cat(self._everyones(turn, count))
        return work, lambda: expect(torch.cat(parts), wanted, (self.members, turn))

    def broadcast(self, turn: int, count: int) -> tuple[Any, Check]:
        root = self.members[turn % len(self.members)]
        tensor = self._mine(turn, count)
        work = dist.broadcast(tensor, root, group=self.group, async_op=True)
        return work, lambda: expect(tensor, whole_numbers(root, turn, count), (self.members, turn))

    def another_way(self, turn: int, count: int) -> tuple[Any, Check]:
        """Reduce int16 tensors, which NCCL does not support."""
        tensor = self._mine(turn, count, torch.int16)
        work = dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.group, async_op=True)
        wanted = torch.stack(self._everyones(turn, count, torch.int16)).amax(0)
        return work, lambda: expect(tensor, wanted, (self.members, turn))


def overlapping(device: torch.device) -> list[Group | None]:
    """Create the groups on all ranks, and return them with None for groups that do not contain this rank."""
    everybody = list(range(dist.get_world_size()))
    chosen = [everybody, everybody, everybody[:-1], everybody[1:], [everybody[0], everybody[-1]], everybody[1:-1]]
    groups: list[Group | None] = []
    for members in (it for it in chosen if len(it) > 1):
        group = dist.new_group(members)
        groups.append(Group(members, group, device) if dist.get_rank() in members else None)
    return groups


def run_program(
    groups: list[Group | None], seed: int, on_some_stream: Callable[[random.Random], AbstractContextManager[Any]]
) -> None:
    """Call the groups in one order on all ranks, with each rank at its own pace and on streams of its own choice."""
    program, own = random.Random(seed), random.Random(1000 * seed + dist.get_rank() + 1)
    for _ in range(6):
        started: list[tuple[Any, Check]] = []
        for turn in range(30):
            group = program.choice(groups)
            kind = program.choice(["all_reduce", "all_reduce", "all_gather", "broadcast", "another_way"])
            count = program.choice([3, 700, 20_000])
            if group is None:
                continue
            with on_some_stream(own):
                started.append(getattr(group, kind)(turn, count))
            if own.random() < 0.2:
                time.sleep(own.random() / 500)
            if own.random() < 0.1:
                own.choice(started)[0].wait()
        for work, _ in started:
            work.wait()
        for _, check in started:
            check()
