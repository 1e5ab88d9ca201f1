# SPDX-License-Identifier: Apache-2.0
"""State of a hook: tensors kept for each bucket, saving and loading, and the order in which buckets are exchanged.

The exchange of a bucket is a generator that yields each collective it has started. The first part of each bucket's
exchange runs in the bucket's own hook; the rest of all buckets runs in the last bucket's hook, bucket by bucket. So all
ranks start collectives in one order. Callbacks of futures would start them in the order in which results arrive, which
differs between ranks.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from horovod.common.compression_methods import CompressionMethod
from horovod.common.log import logger
from horovod.torch.ddp_hooks.bucket import Bucket, Memory, memory_of

Exchange: TypeAlias = Generator[Any, None, None]  # yields dist.Work
_Pending: TypeAlias = tuple[Exchange, Any, "torch.futures.Future[torch.Tensor]", torch.Tensor]


class HookState:
    """State that one model's hook keeps; its subclasses exchange a bucket by one method.

    Args:
            method: Compression method, which must be equal on all ranks.
        process_group: Group of the model's DistributedDataParallel; None is the default group.
    """

    def __init__(self, method: CompressionMethod, process_group: dist.ProcessGroup | None) -> None:
        self.method = method
        self.process_group = process_group
        self.step = 0  # number of backward passes that have exchanged gradients
        self._memories: dict[int, Memory] = {}
        self._loaded: dict[int, Memory] = {}
        self._steps_since_load = 0
        self._pending: list[_Pending] = []
        self._is_compared = False

    def exchange(self, bucket: Bucket) -> Exchange:
        """Average a bucket over the ranks; yield each collective when it has been started."""
        raise NotImplementedError

    def describe(self) -> str:
        """Return the method and its arguments as a text, which ranks compare."""
        return self.method.describe()

    def state_dict(self) -> dict[str, Any]:
        """Return copies of this rank's residuals and factors. They differ between ranks, so save them on every rank."""
        return {
            "method": self.describe(),
            "step": self.step,
            "buckets": {
                index: {
                    "shapes": memory.shapes,
                    "tensors": {name: tensor.detach().clone() for name, tensor in memory.tensors.items()},
                }
                for index, memory in (self._loaded | self._memories).items()
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned on this rank; raise ValueError if it belongs to other arguments."""
        if state["method"] != self.describe():
            raise ValueError(f"The state was saved with {state['method']}, but this hook is {self.describe()}")
        self.step = state["step"]
        self._pending, self._memories, self._steps_since_load = [], {}, 0
        self._loaded = {
            int(index): Memory(
                tuple(tuple(shape) for shape in saved["shapes"]),
                tensors={name: tensor.detach().clone() for name, tensor in saved["tensors"].items()},
            )
            for index, saved in state["buckets"].items()
        }

    def run(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Start the exchange of a bucket; in the last bucket's hook, finish the exchanges of all buckets."""
        if bucket.index() == 0:
            self._pending = []  # left by a backward pass that failed
        if not self._is_compared:
            self._compare_ranks()
        current = Bucket(bucket, self._memory_of(bucket), self.process_group)
        is_dense = current.buffer.nbytes < self.method.min_bytes
        exchange = average_dense(current) if is_dense else self.exchange(current)
        buffer = current.buffer
        # Pass the device, because the future then makes DDP's stream wait for this one.
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
            devices=[buffer.device] if buffer.is_cuda else []
        )
        self._pending.append((exchange, next(exchange), future, buffer))
        if bucket.is_last():
            self._finish()
        return future

    def _compare_ranks(self) -> None:
        """Raise ValueError on all ranks if their hooks have different arguments. The first exchange calls this."""
        described: list[str] = [""] * dist.get_world_size(self.process_group)
        dist.all_gather_object(described, f"{self.describe()}, step {self.step}", group=self.process_group)
        other = next((rank for rank, text in enumerate(described) if text != described[0]), None)
        if other is not None:
            raise ValueError(
                f"Ranks of the group have different communication hooks: rank 0 has {described[0]}, rank {other} has "
                f"{described[other]}. Pass the same arguments on all ranks, and load a saved state on all or on none"
            )
        self._is_compared = True

    def _finish(self) -> None:
        pending, self._pending = self._pending, []
        while pending:
            unfinished: list[_Pending] = []
            for exchange, work, future, buffer in pending:
                work.wait()
                following = next(exchange, None)
                if following is None:
                    future.set_result(buffer)
                else:
                    unfinished.append((exchange, following, future, buffer))
            pending = unfinished
        self.step += 1
        self._steps_since_load += 1

    def _memory_of(self, bucket: GradBucket) -> Memory:
        """Return the bucket's memory: that of the last step, a loaded one, or an empty one.

        After its first backward pass, DDP moves parameters to other buckets once. A loaded state was saved with the
        final buckets, so it is kept until these exist if it does not fit the first ones.
        """
        index, fresh = bucket.index(), memory_of(bucket)
        known, loaded = self._memories.get(index), self._loaded.get(index)
        if loaded is not None and loaded.has_layout_of(fresh):
            del self._loaded[index]
            self._memories[index] = replace(loaded, parameters=fresh.parameters)
        elif known is None or not known.has_layout_of(fresh):
            has_lost = self._steps_since_load > 0 and self._loaded.pop(index, None) is not None
            if has_lost or (known is not None and known.tensors):
                name = self.method.name
                logger.info("DistributedDataParallel has changed bucket %d: dropping its residuals of %s", index, name)
            self._memories[index] = fresh
        return self._memories[index]


def average_dense(bucket: Bucket) -> Exchange:
    """Average a bucket without compression, in its own dtype."""
    bucket.buffer.div_(bucket.size)
    yield dist.all_reduce(bucket.buffer, group=bucket.group, async_op=True)
    bucket.finish(bucket.buffer)
