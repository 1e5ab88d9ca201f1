# SPDX-License-Identifier: Apache-2.0
"""Checks of every collective of torch.distributed on one device, against results computed on the CPU.

Each check raises when it fails. They run in programs that have a default group, on a GPU and on the stand-in for one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist

Tensor = torch.Tensor
all_gather_single: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

DTYPES = (torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)


def of_rank(rank: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a rank's contribution, on the CPU: small whole numbers, whose sums are exact in every type."""
    generator = torch.Generator().manual_seed(1000 + rank)
    values = torch.randint(0, 4, shape, generator=generator)
    if dtype == torch.bool:
        return values > 1
    return torch.complex(values.double(), values.double() + rank).to(dtype) if dtype.is_complex else values.to(dtype)


def same(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    assert torch.equal(actual.cpu(), expected), (actual, expected)


class Checks:
    """Checks on tensors of one device. Tensors of `large` elements take another path than small ones."""

    def __init__(self, device: torch.device, large: int) -> None:
        self.device = device
        self.large = large
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def mine(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        return of_rank(self.rank, shape, dtype).to(self.device)

    def everyones(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
        return [of_rank(rank, shape, dtype) for rank in range(self.size)]

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def all_reduce(self) -> None:
        for dtype in (*DTYPES, torch.complex64):
            for shape in ((), (0,), (7,), (5, 31)):
                tensor = self.mine(shape, dtype)
                dist.all_reduce(tensor)
                same(tensor, reduce(torch.add, self.everyones(shape, dtype)))
        everything = self.everyones((40,), torch.int32)
        expected: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
            dist.ReduceOp.MIN: torch.minimum,
            dist.ReduceOp.MAX: torch.maximum,
            dist.ReduceOp.PRODUCT: torch.mul,
            dist.ReduceOp.BAND: torch.bitwise_and,
            dist.ReduceOp.BXOR: torch.bitwise_xor,
        }
        for op, combine in expected.items():
            tensor = self.mine((40,), torch.int32)
            dist.all_reduce(tensor, op)
            same(tensor, reduce(combine, everything))
        tensor = self.mine((self.large,))
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        same(tensor, reduce(torch.add, self.everyones((self.large,))) / self.size)
        flags = self.mine((50,), torch.bool)
        dist.all_reduce(flags, dist.ReduceOp.SUM)
        same(flags, reduce(torch.logical_or, self.everyones((50,), torch.bool)))

    def reduce_and_broadcast(self) -> None:
        for shape in ((9, 3), (self.large,)):
            for root in (0, self.size - 1):
                tensor = self.mine(shape)
                dist.reduce(tensor, root)
                everyones = self.everyones(shape)
                same(tensor, reduce(torch.add, everyones) if self.rank == root else everyones[self.rank])
                tensor = self.mine(shape)
                dist.broadcast(tensor, root)
                same(tensor, everyones[root])
        flags = self.mine((70,), torch.complex64)
        dist.broadcast(flags, 0)
        same(flags, of_rank(0, (70,), torch.complex64))

    def gathers(self) -> None:
        for shape, dtype in (((4, 5), torch.float32), ((3,), torch.bool), ((self.large // 4,), torch.bfloat16)):
            everyones = self.everyones(shape, dtype)
            listed = [self.empty(*shape, dtype=dtype) for _ in everyones]
            dist.all_gather(listed, self.mine(shape, dtype))
            for got, expected in zip(listed, everyones, strict=True):
                same(got, expected)
            together = self.empty(self.size * shape[0], *shape[1:], dtype=dtype)
            all_gather_single(together, self.mine(shape, dtype))
            same(together, torch.cat(everyones))
            root = self.size - 1
            collected = [self.empty(*shape, dtype=dtype) for _ in everyones] if self.rank == root else None
            dist.gather(self.mine(shape, dtype), collected, root)
            for got, expected in zip(collected or (), everyones, strict=bool(collected)):
                same(got, expected)
        uneven = [of_rank(rank, (3 * rank, 2)) for rank in range(self.size)]
        listed = [self.empty(*it.shape) for it in uneven]
        dist.all_gather(listed, uneven[self.rank].to(self.device))
        for got, expected in zip(listed, uneven, strict=True):
            same(got, expected)

    def scatters(self) -> None:
        root = self.size - 1
        parts = [of_rank(100 + other, (2, 3)) for other in range(self.size)]
        output = self.empty(2, 3)
        dist.scatter(output, [part.to(self.device) for part in parts] if self.rank == root else None, src=root)
        same(output, parts[self.rank])
        for rows in (3, self.large // 4):
            wholes = self.everyones((self.size * rows, 2))
            mine, share = self.mine((self.size * rows, 2)), slice(self.rank * rows, self.rank * rows + rows)
            output = self.empty(rows, 2)
            reduce_scatter_single(output, mine)
            same(output, reduce(torch.add, wholes)[share])
            dist.reduce_scatter(output.zero_(), list(mine.chunk(self.size)))
            same(output, reduce(torch.add, wholes)[share])
            reduce_scatter_single(output, mine, dist.ReduceOp.MAX)
            same(output, reduce(torch.maximum, wholes)[share])

    def all_to_all(self) -> None:
        for rows in (2, self.large // 8):
            whole = (self.size * rows, 3)
            output = self.empty(*whole)
            dist.all_to_all_single(output, self.mine(whole))
            share = slice(rows * self.rank, rows * self.rank + rows)
            same(output, torch.cat([it[share] for it in self.everyones(whole)]))
        # Rank r sends r + s rows to rank s.
        rows_of = [[giver + taker for taker in range(self.size)] for giver in range(self.size)]
        inputs = [of_rank(giver, (sum(rows_of[giver]), 2)) for giver in range(self.size)]
        expected = torch.cat([inputs[giver].split(rows_of[giver])[self.rank] for giver in range(self.size)])
        output, given = self.empty(*expected.shape), inputs[self.rank].to(self.device)
        received = [rows_of[giver][self.rank] for giver in range(self.size)]
        dist.all_to_all_single(output, given, received, rows_of[self.rank])
        same(output, expected)
        outputs = [self.empty(rows, 2) for rows in received]
        dist.all_to_all(outputs, list(given.split(rows_of[self.rank])))
        same(torch.cat(outputs), expected)

    def coalesced(self) -> None:
        lengths = (3, self.large, 1)
        tensors = [self.mine((length,)) for length in lengths]
        with dist._coalescing_manager():
            for tensor in tensors:
                dist.all_reduce(tensor)
        for tensor, length in zip(tensors, lengths, strict=True):
            same(tensor, reduce(torch.add, self.everyones((length,))))
        wholes = [self.empty(self.size * length) for length in lengths]
        with dist._coalescing_manager(async_ops=True) as pending:
            for whole, length in zip(wholes, lengths, strict=True):
                all_gather_single(whole, self.mine((length,)))
        pending.wait()
        shares = [self.empty(length) for length in lengths]
        with dist._coalescing_manager():
            for share, whole in zip(shares, wholes, strict=True):
                reduce_scatter_single(share, whole)
        for share, length in zip(shares, lengths, strict=True):
            same(share, self.size * of_rank(self.rank, (length,)))

    def point_to_point(self) -> None:
        if self.size == 1:
            return
        right, left = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        first, second = self.empty(self.large), self.empty(2, 3, dtype=torch.int64)
        operations = [
            dist.P2POp(dist.isend, self.mine((self.large,)), right, tag=1),
            dist.P2POp(dist.irecv, first, left, tag=1),
            dist.P2POp(dist.irecv, second, left, tag=2),
            dist.P2POp(dist.isend, self.mine((2, 3), torch.int64), right, tag=2),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        same(first, of_rank(left, (self.large,)))
        same(second, of_rank(left, (2, 3), torch.int64))
        # Send with one tag from the device and then from the CPU, because messages must keep their order.
        here, there = self.empty(4), torch.zeros(4)
        sent = [dist.isend(it, right) for it in (self.mine((4,)), -of_rank(self.rank, (4,)))]
        for buffer in (here, there):
            assert dist.recv(buffer, left) == left
        for work in sent:
            work.wait()
        same(here, of_rank(left, (4,)))
        same(there, -of_rank(left, (4,)))

    def objects_and_barriers(self) -> None:
        everything: list[Any] = [None] * self.size
        dist.all_gather_object(everything, {"rank": self.rank})
        assert [item["rank"] for item in everything] == list(range(self.size))
        dist.barrier()
        cpu = of_rank(self.rank, (6,))
        dist.all_reduce(cpu)  # one group serves both devices
        same(cpu, reduce(torch.add, self.everyones((6,))))

    def futures(self) -> None:
        tensor = self.mine((self.large,))
        work = dist.all_reduce(tensor, async_op=True)
        doubled = work.get_future().then(lambda done: done.value()[0] * 2).wait()
        same(doubled, 2 * reduce(torch.add, self.everyones((self.large,))))
        work.wait()
        while not work.is_completed():  # the device may still be busy
            pass
        assert work.is_success()
        forgotten = [self.mine((self.large,)) for _ in range(4)]
        for one in forgotten:
            dist.all_reduce(one, async_op=True)  # never waited for
        last = self.mine((5,))
        dist.all_reduce(last)
        same(last, reduce(torch.add, self.everyones((5,))))

    def groups(self) -> None:
        """Run operations of several groups at once, one of which has a single rank."""
        both, alone = dist.new_group(), [dist.new_group([rank]) for rank in range(self.size)][self.rank]
        tensors = [self.mine((self.large,)) for _ in range(3)]
        works = [
            dist.all_reduce(tensor, group=group, async_op=True)
            for tensor, group in zip(tensors, (both, alone, None), strict=True)
        ]
        for work in works:
            work.wait()
        total = reduce(torch.add, self.everyones((self.large,)))
        for tensor, expected in zip(tensors, (total, of_rank(self.rank, (self.large,)), total), strict=True):
            same(tensor, expected)
        dist.destroy_process_group(both)

    def all(self) -> None:
        for check in (
            self.all_reduce,
            self.reduce_and_broadcast,
            self.gathers,
            self.scatters,
            self.all_to_all,
            self.coalesced,
            self.point_to_point,
            self.objects_and_barriers,
            self.futures,
            self.groups,
        ):
            check()
