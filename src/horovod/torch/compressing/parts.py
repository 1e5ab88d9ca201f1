# SPDX-License-Identifier: Apache-2.0
"""State of one bucket on this rank: the gradients that a method compresses, the shares of hosts, the kept tensors."""

from __future__ import annotations

import json
import zlib
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import torch

from horovod.common.compression_methods import CompressionMethod
from horovod.common.context import default_context
from horovod.common.host_shares import HostShares
from horovod.common.log import logger
from horovod.common.residual_moves import Holding, Segments, present_place
from horovod.torch.compressing.loss_scale import LossScale
from horovod.torch.compressing.moving import Moving, norm_of
from horovod.torch.compressing.within_host import divide, is_in_place, joined
from horovod.torch.hooks.bucket import Bucket, Running

Tensor = torch.Tensor
Tensors: TypeAlias = dict[str, Tensor]


@dataclass
class Kept:
    """Tensors that a step leaves for the next one.

    Args:
        memory: Tensors of this rank alone, such as residuals.
        shared: Tensors that are equal on all ranks.
    """

    memory: Tensors = field(default_factory=dict)
    shared: Tensors = field(default_factory=dict)


Reduced: TypeAlias = Generator[Any, Any, tuple[Tensor, Kept]]


class BucketPart:
    """State of one bucket; its subclasses exchange the values by one method."""

    counts_steps: ClassVar[bool] = False  # True if the method depends on the number of steps

    def __init__(self, method: CompressionMethod, scale: LossScale) -> None:
        self.method = method
        self.kept = Kept()
        self.steps = 0  # steps whose result was finite
        self._loss_scale = scale
        self._unit: float | None = None  # loss scale of the kept tensors; None while it is not known
        self._holding = Holding()  # ranges of the values that the memory belongs to
        self._shares: HostShares | None = None
        self._meeting: object = None  # world and name of the exchange that determined the shares

    # Methods that subclasses override

    def chooses(self, name: str, gradient: Tensor) -> bool:
        """Return True if a gradient is compressed rather than sent dense."""
        return self.method.compresses(name, gradient.nbytes)

    def is_dense(self, shares: HostShares) -> bool:
        """Return True if all gradients of this step are sent dense."""
        return self.method.scope == "host" and shares.hosts == 1

    def prepare(self, bucket: Bucket, chosen: list[str]) -> None:
        """Change the gradients of the bucket before they are exchanged."""

    def segments(self, bucket: Bucket, chosen: list[str], shares: HostShares) -> dict[str, Segments]:
        """Return, by name, the ranges of the chosen values for which the rank with these shares keeps residuals."""
        raise NotImplementedError

    def reduce(self, bucket: Bucket, chosen: list[str], shares: HostShares) -> Reduced:
        """Return the sum of the chosen gradients over all ranks as one flat tensor, and the tensors to keep."""
        raise NotImplementedError

    def add_dense(self, bucket: Bucket, dense: Tensor, chosen: list[str]) -> Tensors:
        """Change the reduced dense gradients, one flat tensor, in place. Return tensors to keep, equal on all ranks."""
        return {}

    def after_dense(self, bucket: Bucket, total: Tensor) -> Tensor:
        """Return the result of a step in which all gradients were sent dense."""
        if self.counts_steps and bucket.is_finite(total):
            self.steps += 1
        return total

    # Exchange

    def exchange(self, bucket: Bucket) -> Running:
        """Reduce a bucket. Gradients that the method does not compress are reduced dense at the same time."""
        shares = yield from self._divided(bucket)
        self._follow_scale()
        chosen = self._chosen(bucket)
        self.prepare(bucket, chosen)
        if self.is_dense(shares):
            result: Tensor = yield bucket.allreduce_async(bucket.tensor)
            return self.after_dense(bucket, result)
        dense = [it for name, it in bucket.gradients.items() if name not in chosen]
        under_way = bucket.allreduce_async(joined(dense), stage="dense") if dense else None
        total, kept = torch.empty(0), Kept(shared=self.kept.shared)
        if chosen:
            total, kept = yield from self.reduce(bucket, chosen, shares)
        if under_way is not None:
            rest = yield under_way
            kept.shared = {**kept.shared, **self.add_dense(bucket, rest, chosen)}
            divide(rest, dense)
            if not is_in_place(bucket.average(total), bucket):
                divide(total, [bucket.gradients[name] for name in chosen])
            total = bucket.tensor
        else:
            total = bucket.average(total).to(bucket.tensor.dtype)
        # Every rank has the whole bucket by now, so either all ranks keep this step's tensors or none does.
        if bucket.is_finite(total):
            self._keep(kept)
        return total

    def _keep(self, kept: Kept) -> None:
        self.kept = kept
        self._unit = self._loss_scale.current()
        self.steps += self.counts_steps

    def memory_of(self, bucket: Bucket, chosen: list[str], shares: HostShares) -> Tensors:
        """Return the kept tensors of this rank's ranges of the chosen values. Drop those of other ranges."""
        wanted = self._holding_of(bucket, chosen, shares)
        if self.kept.memory and not self._holding.fits(wanted, self.kept.memory):
            logger.info(
                "%s: dropping residuals of norm %g, because the compressed values have changed",
                self.method.name,
                norm_of(self.kept.memory.values()),
            )
            self.kept.memory = {}
        self._holding = wanted
        return self.kept.memory

    def _holding_of(self, bucket: Bucket, chosen: list[str], shares: HostShares) -> Holding:
        count = sum(bucket.gradients[name].numel() for name in chosen)
        return Holding(present_place(self.method.scope), count, self.segments(bucket, chosen, shares))

    # Setup

    def _divided(self, bucket: Bucket) -> Generator[Any, Any, HostShares]:
        """Return the shares of this world's hosts. Make new ranks take over the state that is equal on all ranks."""
        # A failed hook changes this wire name, because after it some ranks may know the shares and others may not.
        bucket.label("")
        meeting = default_context.world, bucket.wire_name("hosts")
        if self._shares is None or self._meeting != meeting:
            held = self._holding.restricted_to(self.kept.memory).packed()
            text = json.dumps([default_context.topology.host, self._facts(), held, self._unit]).encode()
            texts = yield bucket.allgather_async(torch.tensor(list(text), dtype=torch.uint8), stage="hosts")
            told = [json.loads(bytes(it.tolist())) for it in texts]
            hosts = [str(rank) if self.method.scope == "all" else repr(it[0]) for rank, it in enumerate(told)]
            if any(it[1] != told[0][1] for it in told):
                yield from self._take_over(bucket, told[0][1])
            shares = HostShares(hosts, bucket.rank)
            if self.method.scope == "all" or shares.hosts > 1:
                yield from self._move_residuals(bucket, hosts, [(Holding.unpacked(it[2]), it[3]) for it in told])
            self._shares, self._meeting = shares, meeting
            self._log(bucket, self._shares)
        bucket.label(self._scope_of(self._shares))
        return self._shares

    def _facts(self) -> dict[str, Any]:
        """Return the values that ranks must have in common."""
        shared = {
            name: [it.numel(), zlib.crc32(it.cpu().numpy().tobytes())] for name, it in sorted(self.kept.shared.items())
        }
        return {"steps": self.steps, "shared": shared, "unit": self._unit if shared else None}

    def _take_over(self, bucket: Bucket, facts: dict[str, Any]) -> Generator[Any, Any, None]:
        """Take over the first rank's steps and shared tensors, because ranks are new or have loaded another state."""
        device = bucket.tensor.device
        mine = [it.to(device).reshape(-1) for _, it in sorted(self.kept.shared.items())] if bucket.rank == 0 else []
        # Send float64, which holds float32 and float64 values: ranks without tensors do not know the dtype.
        sent = torch.cat(mine).double() if mine else torch.empty(0, dtype=torch.float64, device=device)
        gathered = yield bucket.allgather_async(sent, stage="shared")
        parts = gathered[0].split([count for count, _ in facts["shared"].values()])
        self.kept.shared = {
            name: part.to(bucket.tensor.dtype, copy=True) for name, part in zip(facts["shared"], parts, strict=True)
        }
        self.steps = facts["steps"]
        if not self.kept.memory:
            self._unit = facts["unit"]

    def _move_residuals(
        self, bucket: Bucket, hosts: list[str], told: list[tuple[Holding, float | None]]
    ) -> Generator[Any, Any, None]:
        """Exchange residuals with the ranks of this host, because ranks are new or have gone. All ranks call it.

        Args:
            hosts: The host of each rank.
            told: What each rank has, and the loss scale of its tensors.
        """
        kinds = sorted({kind for it, _ in told for kind in it.segments})
        if not kinds:
            return
        chosen = self._chosen(bucket)
        here = HostShares(hosts, bucket.rank).here
        new = [self._holding_of(bucket, chosen, HostShares(hosts, rank)) for rank in here]
        mine = new[here.index(bucket.rank)]
        units = {rank: told[rank][1] for rank in here if told[rank][0].segments}
        unit = units.get(bucket.rank) or next(iter(units.values()), None)
        moving = Moving(bucket, self.method.name, here, [told[rank][0].of_same(mine) for rank in here], new)
        self.kept.memory = yield from moving.run(
            kinds, self.kept.memory, {rank: unit / it for rank, it in units.items() if unit and it and unit != it}
        )
        self._holding = mine
        if units:
            self._unit = unit

    def _chosen(self, bucket: Bucket) -> list[str]:
        return [name for name, it in bucket.gradients.items() if self.chooses(name, it)]

    def _scope_of(self, shares: HostShares) -> str:
        if self.method.scope == "all":
            return "between-ranks"
        return "dense-on-one-host" if shares.hosts == 1 else "between-hosts"

    def _log(self, bucket: Bucket, shares: HostShares) -> None:
        if bucket.index == 0 and bucket.rank == 0:
            what = {
                "between-ranks": f"compresses what travels between the {bucket.size} ranks",
                "between-hosts": f"compresses what travels between the {shares.hosts} hosts",
                "dense-on-one-host": "compresses nothing, because all ranks are on one host",
            }[self._scope_of(shares)]
            logger.info("%s, scope=%r: %s", self.method.name, self.method.scope, what)

    # Loss scale

    def _follow_scale(self) -> None:
        """Convert the kept tensors to the loss scale of this step's gradients."""
        if not self.kept.memory and not self.kept.shared:
            return
        current = self._loss_scale.current()
        if current is None:
            return
        unit = self._loss_scale.at_first if self._unit is None else self._unit
        if unit != current and unit and current:
            for it in (*self.kept.memory.values(), *self.kept.shared.values()):
                it.mul_(current / unit)
        self._unit = current

    # Saving and loading

    def state(self) -> dict[str, Any]:
        """Return copies of this rank's state."""
        return {
            "holding": self._holding.restricted_to(self.kept.memory).packed(),
            "memory": {name: it.clone() for name, it in self.kept.memory.items()},
            "shared": {name: it.clone() for name, it in self.kept.shared.items()},
            "steps": self.steps,
            "unit": self._unit,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self._holding = Holding.unpacked(state["holding"]) if "holding" in state else Holding()
        self.kept = Kept(
            {name: it.clone() for name, it in state.get("memory", {}).items()},
            {name: it.clone() for name, it in state.get("shared", {}).items()},
        )
        self.steps = state.get("steps", 0)
        self._unit = state.get("unit")
