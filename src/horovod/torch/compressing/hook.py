# SPDX-License-Identifier: Apache-2.0
"""The hook that compresses an optimizer's gradients by one method, with what it keeps of each bucket."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeAlias

import torch

from horovod.common.compression_methods import CompressionMethod, Int8, OneBit, TopK
from horovod.common.context import default_context
from horovod.common.host_shares import HostShares
from horovod.common.log import logger
from horovod.torch.codecs import codec_for, pair_codec_for
from horovod.torch.compressing.exchange import Memory, in_two_stages, of_largest
from horovod.torch.hooks.bucket import Bucket, Running

Tensor = torch.Tensor
_Step: TypeAlias = Generator[Any, Any, Tensor]
_EMPTY: dict[str, Any] = {"range": None, "memory": {}}


class CompressionHook:
    """A communication hook. Its residuals differ between ranks, so each rank saves its own state."""

    def __init__(self, method: CompressionMethod) -> None:
        if not isinstance(method, Int8 | OneBit | TopK):
            raise ValueError(f"hvd.DistributedOptimizer does not support the compression {method.describe()}")
        self.method = method
        self._parts: dict[int, BucketPart] = {}

    def describe(self) -> str:
        """Return the text of the method and its arguments, which ranks compare."""
        return self.method.describe()

    def __call__(self, bucket: Bucket) -> Running:
        """Return the generator of a bucket's exchange."""
        part = self._parts.setdefault(bucket.index, BucketPart(self.method))
        return part.exchange(bucket)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of this rank's residuals. They differ between ranks: save them on every rank."""
        buckets = {index: part.state() for index, part in self._parts.items()}
        return {"method": self.describe(), "buckets": buckets}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned on this rank; ValueError if it belongs to another method."""
        if state["method"] != self.describe():
            raise ValueError(f"The state was saved with {state['method']}, but this hook is {self.describe()}")
        saved = {int(index): it for index, it in state["buckets"].items()}
        for index in {*self._parts, *saved}:
            self._parts.setdefault(index, BucketPart(self.method)).load(saved.get(index, _EMPTY))


class BucketPart:
    """One bucket as this rank knows it: which of its gradients are compressed, its shares, its residuals."""

    def __init__(self, method: CompressionMethod) -> None:
        self._method = method
        self._memory: Memory = {}
        self._range: tuple[int, ...] | None = None  # of what the residuals belong to: values, hosts, this host's number
        self._shares: HostShares | None = None
        self._meeting: object = None  # for which the shares hold

    def state(self) -> dict[str, Any]:
        """Return copies of what this rank keeps."""
        return {"range": self._range, "memory": {name: it.clone() for name, it in self._memory.items()}}

    def load(self, state: dict[str, Any]) -> None:
        """Take over what `state` returned."""
        self._range = None if state["range"] is None else tuple(state["range"])
        self._memory = {name: it.clone() for name, it in state["memory"].items()}

    def exchange(self, bucket: Bucket) -> Running:
        """Reduce a bucket. Gradients that the method leaves out travel dense, at the same time."""
        shares = yield from self._divided(bucket)
        if self._method.scope == "host" and shares.hosts == 1:
            result: Tensor = yield bucket.allreduce_async(bucket.tensor)
            return result
        chosen = [name for name, it in bucket.gradients.items() if self._method.compresses(name, it.nbytes)]
        dense = [it for name, it in bucket.gradients.items() if name not in chosen]
        under_way = bucket.allreduce_async(_joined(dense), stage="dense") if dense else None
        values = [bucket.gradients[name] for name in chosen]
        total, memory = torch.empty(0), dict[str, Tensor]()
        if values:
            total, memory = yield from self._compressed(bucket, _joined(values).float(), shares)
        if under_way is not None:
            rest = yield under_way
            _divide(rest, dense)
            _divide(bucket.average(total), values)
            total = bucket.tensor
        else:
            total = bucket.average(total).to(bucket.tensor.dtype)
        # Every rank has the whole bucket by now, so all of them keep their residuals or none does.
        if self._method.error_feedback and bucket.is_finite(total):
            self._memory = memory
        return total

    def _divided(self, bucket: Bucket) -> Generator[Any, Any, HostShares]:
        """Return the shares of this world's hosts."""
        # The name counts failures of hooks, after which some ranks may know the shares and others may not.
        meeting = default_context.world, bucket.wire_name("hosts")
        if self._shares is None or self._meeting != meeting:
            name = default_context.topology.host.encode()
            named = yield bucket.allgather_async(torch.tensor(list(name), dtype=torch.uint8), stage="hosts")
            hosts = [str(rank) if self._method.scope == "all" else repr(it.tolist()) for rank, it in enumerate(named)]
            self._shares, self._meeting = HostShares(hosts, bucket.rank), meeting
        return self._shares

    def _compressed(self, bucket: Bucket, values: Tensor, shares: HostShares) -> Generator[Any, Any, tuple[Any, Any]]:
        """Return the sum of flat values over all ranks, and what to keep if it is finite."""
        bounds = shares.bounds(values.numel())
        share = yield from _summed_here(bucket, values, shares, bounds)
        first = 0 if shares.mine is None else bounds[shares.mine]
        self._keep_memory_of((first, first + share.numel(), shares.hosts, shares.peer_index))
        memory = self._memory if self._method.error_feedback else {}
        if isinstance(self._method, TopK):
            exchange = of_largest(bucket, share, shares, pair_codec_for(self._method, values.device), memory)
        else:
            exchange = in_two_stages(bucket, share, shares, codec_for(self._method, values.device), memory)
        total, kept = yield from exchange
        if shares.largest == 1:
            return total, kept
        sent = total.repeat(len(shares.here))
        whole, _ = yield bucket.alltoall_async(sent, shares.splits_to_host(total.numel()), stage="gather")
        return whole, kept

    def _keep_memory_of(self, wanted: tuple[int, ...]) -> None:
        """Drop residuals that belong to other values than this rank's share."""
        if self._range != wanted and self._memory:
            norm = float(sum(float(it.double().square().sum()) for it in self._memory.values()) ** 0.5)
            logger.info(
                "%s: the shares of hosts have changed: residuals of norm %g are dropped", self._method.name, norm
            )
            self._memory = {}
        self._range = wanted


def _summed_here(bucket: Bucket, values: Tensor, shares: HostShares, bounds: list[int]) -> _Step:
    """Return the sum of this rank's share over the ranks of its host."""
    if shares.largest == 1:
        return values
    got, _ = yield bucket.alltoall_async(values, shares.splits_to_owners(bounds), stage="reduce")
    if shares.mine is None:
        return values[:0]
    parts = got.view(len(shares.here), bounds[shares.mine + 1] - bounds[shares.mine])
    total: Tensor = parts[0].clone()
    for part in parts[1:]:
        total.add_(part)
    return total


def _joined(tensors: list[Tensor]) -> Tensor:
    """Return the values of tensors as one flat tensor."""
    return torch.cat([it.reshape(-1) for it in tensors])


def _divide(flat: Tensor, targets: list[Tensor]) -> None:
    """Copy consecutive parts of a flat tensor to tensors."""
    for target, part in zip(targets, torch.split(flat, [it.numel() for it in targets]), strict=True):
        target.copy_(part.view_as(target))
