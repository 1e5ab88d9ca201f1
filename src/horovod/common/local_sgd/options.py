# SPDX-License-Identifier: Apache-2.0
"""Options of local SGD and DiLoCo, checked when they are made. Nothing here knows ranks or a framework."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from horovod.common.process_set import ProcessSet, global_process_set

WIRES = ("fp32", "bf16", "int8", "int4")
ACROSS = ("ranks", "hosts")


def _check_integer(name: str, value: Any, lowest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise ValueError(f"{name} must be an integer of at least {lowest}, not {value!r}")


def _check_number(name: str, value: Any, lowest: float, below: float | None, above: bool = False) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or value < lowest or (above and value == lowest) or (below is not None and value >= below):
        limit = f"above {lowest}" if above else f"at least {lowest}"
        upper = "" if below is None else f" and below {below}"
        raise ValueError(f"{name} must be a number {limit}{upper}, not {value!r}")


def _check_choice(name: str, value: Any, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


@dataclass(frozen=True)
class OuterSgd:
    """Rule by which the global weights follow the workers' average.

    Args:
        lr: The outer learning rate.
        momentum: Share of the outer momentum that is kept from round to round.
        nesterov: Whether a round already applies the momentum that it leaves behind.
    """

    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True

    def __post_init__(self) -> None:
        _check_number("outer: lr", self.lr, 0, None)
        _check_number("outer: momentum", self.momentum, 0, 1)
        if not isinstance(self.nesterov, bool):
            raise ValueError(f"outer: nesterov must be True or False, not {self.nesterov!r}")


AVERAGE = OuterSgd(lr=1.0, momentum=0.0, nesterov=False)
"""The rule of local SGD: the global weights become the workers' average."""


@dataclass(frozen=True)
class Options:
    """Options of rounds. Give either `every` or `every_seconds`.

    Args:
        every: Number of inner steps after which each fragment is exchanged.
        every_seconds: Number of seconds after which each fragment is exchanged. Workers are weighted by their steps.
        fragments: Number of parts of the model that are exchanged one after the other.
        delay: Number of inner steps that a worker goes on with before it merges the result of an exchange.
        merge: Share of the worker's own weights in a merge, from 0 (take the global weights) to below 1.
        wire: Format of the values on the wire: fp32, bf16, int8 or int4.
        outer: Rule by which the global weights follow the average.
        across: What counts as one worker: "ranks" or "hosts".
        process_set: The ranks that take part.
        deadline_s: Seconds after the first worker is ready at which a round begins without the late workers.
    """

    every: int | None = None
    every_seconds: float | None = None
    fragments: int = 1
    delay: int = 0
    merge: float = 0.0
    wire: str = "fp32"
    outer: OuterSgd = field(default_factory=OuterSgd)
    across: str = "ranks"
    process_set: ProcessSet = global_process_set
    deadline_s: float = 30.0

    def __post_init__(self) -> None:
        if (self.every is None) == (self.every_seconds is None):
            raise ValueError(
                f"Give either every or every_seconds, not every={self.every!r} and every_seconds={self.every_seconds!r}"
            )
        if self.every is not None:
            _check_integer("every", self.every, 1)
        if self.every_seconds is not None:
            _check_number("every_seconds", self.every_seconds, 0, None, above=True)
        _check_integer("fragments", self.fragments, 1)
        _check_integer("delay", self.delay, 0)
        _check_number("merge", self.merge, 0, 1)
        _check_number("deadline_s", self.deadline_s, 0, None, above=True)
        _check_choice("wire", self.wire, WIRES)
        _check_choice("across", self.across, ACROSS)
        if not isinstance(self.outer, OuterSgd):
            raise ValueError(f"outer must be an OuterSgd(lr, momentum, nesterov), not {self.outer!r}")
        if not isinstance(self.process_set, ProcessSet):
            raise ValueError(f"process_set must be a hvd.ProcessSet, not {self.process_set!r}")
        if self.across == "hosts" and self.process_set is not global_process_set:
            raise ValueError("process_set cannot be given with across='hosts', which takes all ranks of each host")
        if self.across == "hosts" and (self.every is None or self.delay):
            raise ValueError("across='hosts' needs every=H and delay=0, because the ranks of a host exchange in step")
        self._check_steps()

    def _check_steps(self) -> None:
        if self.every is None:
            return
        if self.fragments > self.every:
            raise ValueError(f"fragments={self.fragments} is more than every={self.every}: use fewer fragments")
        if self.delay * self.fragments >= self.every:
            raise ValueError(
                f"delay={self.delay} must be below every / fragments = {self.every} / {self.fragments}, because an "
                "exchange must end before the next one begins"
            )

    def check_layers(self, layers: Sequence[str]) -> None:
        """Raise ValueError if the model has fewer layers than fragments."""
        if self.fragments > len(layers):
            raise ValueError(
                f"fragments={self.fragments} is more than the {len(layers)} layers of the model ({_some(layers)}): use "
                "fewer fragments, or give the parameters names that begin with their layer's name"
            )

    def described(self) -> dict[str, Any]:
        """Return all options that the ranks must agree on, for a comparison."""
        names = ("every", "every_seconds", "fragments", "delay", "merge", "wire", "across", "deadline_s")
        found = {name: getattr(self, name) for name in names}
        outer = {f"outer: {name}": getattr(self.outer, name) for name in ("lr", "momentum", "nesterov")}
        return {**found, **outer}


def outer_of(outer: Any) -> OuterSgd:
    """Return the outer rule that a user describes: None, an OuterSgd, a dict, or an SGD optimizer of torch."""
    if outer is None:
        return OuterSgd()
    if isinstance(outer, OuterSgd):
        return outer
    values = outer if isinstance(outer, dict) else getattr(outer, "defaults", None)
    if not isinstance(values, dict) or "lr" not in values:
        raise ValueError(f"outer must be an OuterSgd(lr, momentum, nesterov), a dict or torch.optim.SGD, not {outer!r}")
    unsupported = [name for name in ("dampening", "weight_decay", "maximize") if values.get(name)]
    unknown = [] if values is not outer else sorted(set(values) - {"lr", "momentum", "nesterov"})
    if unsupported or unknown or "betas" in values:
        raise ValueError(f"outer supports lr, momentum and nesterov, not {unsupported or unknown or ['betas']}")
    return OuterSgd(float(values["lr"]), float(values.get("momentum", 0.0)), bool(values.get("nesterov", False)))


def difference(described: Sequence[dict[str, Any]], ranks: Sequence[int]) -> str:
    """Return the first option that differs between ranks, in words for the user; empty if they all agree."""
    for name in described[0]:
        values = [one.get(name) for one in described]
        for rank, value in zip(ranks, values, strict=True):
            if value != values[0]:
                return f"{name} is {values[0]!r} on rank {ranks[0]} and {value!r} on rank {rank}"
    return ""
