# SPDX-License-Identifier: Apache-2.0
"""Worlds in which tests run, and the decorators that run a test in them.

The body of an `on_all_ranks` test runs in every rank of a world. Its results must be equal on all ranks.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from testkit.variables import size_of

if TYPE_CHECKING:
    from harness.pool import Pool

# With such small chunks, inputs of a few hundred elements take every path of a large message.
SMALL_CHUNKS = {
    "HOROVOD_CHUNK_BYTES": "1024",
    "HOROVOD_CHUNK_SLOTS": "3",
    "HOROVOD_SMALL_MESSAGE_BYTES": "64",
    "HOROVOD_SINGLE_COPY_BYTES": "64",
}
TCP = {"HOROVOD_SHARED_MEMORY": "0", "HOROVOD_TCP_STREAMS": "2"}
BY_HOST = {"HOROVOD_HIERARCHICAL_ALLGATHER": "1"}  # for messages of any size
DYNAMIC = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
DETERMINISTIC = {"HOROVOD_DETERMINISTIC": "1"}


@dataclass(frozen=True)
class World:
    """Number of ranks, on (simulated) hosts, with settings."""

    name: str
    hosts: str  # in the format of horovodrun -H
    env: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def size(self) -> int:
        return size_of(self.hosts)


WORLDS = {
    world.name: world
    for world in (
        World("one", "a:1", DYNAMIC | SMALL_CHUNKS),
        World("shm2", "a:2", DYNAMIC | SMALL_CHUNKS),
        World("tcp2", "a:2", DYNAMIC | SMALL_CHUNKS | TCP),
        # Hosts differ in size: one rank of each host forwards, and sums are not hierarchical.
        World("hosts3", "a:2,b:1", DYNAMIC | SMALL_CHUNKS | BY_HOST),
        World("shm4", "a:4", DYNAMIC | SMALL_CHUNKS),
        World("tcp4", "a:4", DYNAMIC | SMALL_CHUNKS | TCP),
        World("hosts4", "a:2,b:2", DYNAMIC | SMALL_CHUNKS | BY_HOST),  # hosts are equal in size: hierarchical
    )
}
ALL = tuple(WORLDS)
SEVERAL = tuple(name for name in ALL if name != "one")
FOURS = ("shm4", "tcp4", "hosts4")
SHM3 = World("shm3", "a:3", DYNAMIC | SMALL_CHUNKS)  # for tests of one rank that differs from two others
# Worlds in which the engine rounds compressed values: between hosts, and on one host if results must not depend on the
# layout.
ROUNDING = (
    World("hosts2", "a:1,b:1", DYNAMIC | SMALL_CHUNKS),
    World("deterministic2", "a:2", DYNAMIC | SMALL_CHUNKS | DETERMINISTIC),
)


def in_worlds(*worlds: str | World) -> pytest.MarkDecorator:
    """Parametrise a test that takes a `world`."""
    specs = [WORLDS[world] if isinstance(world, str) else world for world in worlds or ALL]
    return pytest.mark.parametrize("world", specs, indirect=True, ids=[spec.name for spec in specs])


def on_all_ranks(*worlds: str | World, limit_s: float = 30) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a test from a body that every rank of the worlds runs (default: of all worlds)."""

    def decorate(body: Callable[..., Any]) -> Callable[..., Any]:
        return in_worlds(*worlds)(run_by_all_ranks(body, limit_s))  # type: ignore[no-any-return]

    return decorate


def run_by_all_ranks(body: Callable[..., Any], limit_s: float) -> Callable[..., Any]:
    """Return a test of a body, which still has to be parametrised with a `world`."""

    @functools.wraps(body)
    def test(world: Pool, **arguments: Any) -> None:
        first, *others = world.run(body, limit_s=limit_s, **arguments)
        for rank, answer in enumerate(others, start=1):
            assert answer == first, f"rank {rank} and rank 0 differ: {answer!r} and {first!r}"

    signature = inspect.signature(body)
    parameter = inspect.Parameter("world", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    test.__signature__ = signature.replace(parameters=[parameter, *signature.parameters.values()])  # type: ignore[attr-defined]
    test.body = body  # type: ignore[attr-defined]
    return test
