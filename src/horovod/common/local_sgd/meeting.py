# SPDX-License-Identifier: Apache-2.0
"""What the members of a session compare when they meet, and what follows from it. The functions are pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from horovod.common.exceptions import HorovodMismatchError
from horovod.common.local_sgd.fragments import NamedShape
from horovod.common.local_sgd.options import difference
from horovod.common.local_sgd.outer import Outer

NO_STATE = -1


@dataclass(frozen=True)
class Introduction:
    """What one rank tells the others.

    Attributes:
        rank: Its rank.
        worker_id: Its number that stays with it in an elastic job; otherwise its rank.
        host: Its host.
        sessions: How many sessions it has been in.
        options: Its options by name.
        parameters: Its parameters.
        next_round: Its next round, or NO_STATE if it has no global weights.
        digest: Checksum of its global weights and momentum.
        steps: Its inner steps.
        started: How many rounds it has started.
        made: Which of the process set's models this is, in the order in which the program made them; 0 if unknown.
    """

    rank: int
    worker_id: int
    host: str
    sessions: int
    options: dict[str, Any]
    parameters: list[NamedShape]
    next_round: int
    digest: str
    steps: int
    started: int
    made: int = 0


def digest_of(outer: Outer) -> str:
    """Return a checksum of all global weights and momentum, whatever the number of fragments."""
    found = hashlib.sha1(usedforsecurity=False)
    for values in outer.all_by_name():
        for name in sorted(values):
            found.update(values[name].tobytes())
    return found.hexdigest()


def check_alike(introductions: Sequence[Introduction]) -> None:
    """Raise HorovodMismatchError, which names the first difference, unless all ranks have equal options and models."""
    ranks = [one.rank for one in introductions]
    text = difference([one.options for one in introductions], ranks) or _model_difference(introductions)
    if not text and len({one.made for one in introductions}) > 1:
        numbers = ", ".join(f"{one.made} on rank {one.rank}" for one in introductions)
        text = f"make and step the optimizers of several models in one order; this is number {numbers}"
    if text:
        raise HorovodMismatchError(f"Local SGD needs equal arguments and models on all ranks: {text}")


def _model_difference(introductions: Sequence[Introduction]) -> str:
    first = introductions[0]
    for other in introductions[1:]:
        if len(other.parameters) != len(first.parameters):
            return (
                f"the model has {len(first.parameters)} parameters on rank {first.rank} and {len(other.parameters)} "
                f"on rank {other.rank}"
            )
        for mine, its in zip(first.parameters, other.parameters, strict=True):
            if mine != its:
                return (
                    f"a parameter is {mine[0]!r} of shape {mine[1]} on rank {first.rank} and {its[0]!r} of shape "
                    f"{its[1]} on rank {other.rank}"
                )
    return ""


def workers_of(introductions: Sequence[Introduction], across: str) -> tuple[tuple[int, ...], ...]:
    """Return the members of each worker. ValueError if hosts have different numbers of ranks."""
    if across == "ranks":
        return tuple((index,) for index in range(len(introductions)))
    hosts: dict[str, list[int]] = {}
    for index, one in enumerate(introductions):
        hosts.setdefault(one.host, []).append(index)
    if len({len(members) for members in hosts.values()}) > 1:
        counts = ", ".join(f"{len(members)} on {host}" for host, members in hosts.items())
        raise ValueError(f"across='hosts' needs equally many ranks on each host, but there are {counts}")
    return tuple(tuple(members) for members in hosts.values())


def source_of(introductions: Sequence[Introduction]) -> int | None:
    """Return the member from which the others take the global state; None if all have it already, or none has it."""
    newest = max(one.next_round for one in introductions)
    source = next(index for index, one in enumerate(introductions) if one.next_round == newest)
    is_new = newest == NO_STATE
    has_it = all((one.next_round, one.digest) == (newest, introductions[source].digest) for one in introductions)
    return None if is_new or has_it else source
