# SPDX-License-Identifier: Apache-2.0
"""Survey of hosts for `hvd doctor`: an agent on each host examines it, and the agents measure the connections.

Unlike the start of a job, it continues without the hosts that do not answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from horovod.common.rendezvous.protocol import make_secret
from horovod.common.version import VERSION
from horovod.launcher.remote.addresses import Choice, choose
from horovod.launcher.remote.asking import answers, ask_to_reach, candidates_of, listening, reached
from horovod.launcher.remote.host import State
from horovod.launcher.remote.hosts import RemoteHosts
from horovod.launcher.remote.measuring import Way
from horovod.launcher.remote.opening import Silence, silence_of
from horovod.launcher.remote.probing import Attempt

_CLOCK_ROUNDS = 5

Pair = tuple[str, str]  # from host, to host


@dataclass(frozen=True)
class Offset:
    """Difference of a clock to this machine's in seconds (positive if ahead), and the largest possible error."""

    seconds: float
    error: float


@dataclass(frozen=True)
class Surveyed:
    """Results for one host. `facts` come with the agent's hello, `examination` holds its checks."""

    silence: Silence | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    examination: Mapping[str, Any] = field(default_factory=dict)
    choice: Choice | None = None
    offset: Offset | None = None


@dataclass(frozen=True)
class Survey:
    """Results for all hosts. `problems` describes hosts that cannot reach each other."""

    hosts: Mapping[str, Surveyed]
    ways: Mapping[Pair, Way]
    problems: Sequence[str]


def survey(
    host_commands: Mapping[str, Sequence[str]],
    interfaces: Sequence[str],
    limit_s: float,
    *,
    without_ranks: Collection[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Survey:
    """Survey the hosts.

    Args:
        without_ranks: Hosts that must be reached, but need not reach others.
        say: Receives messages about the progress.
    """
    with closing(RemoteHosts(host_commands)) as remote:
        say(f"starting agents on {len(host_commands)} hosts")
        remote.wait(lambda host: host.state is not State.CONNECTING, limit_s)
        hosts = {name: Surveyed(silence_of(host, limit_s), host.facts) for name, host in remote.hosts.items()}
        able = [name for name, one in hosts.items() if one.silence is None and is_same_version(one.facts)]
        examinations = _examine(remote, able)
        offsets = {name: _offset(remote, name) for name in able}
        say("finding the addresses that each host can reach")
        attempts, choices, problems = _choose(remote, able, interfaces, without_ranks)
        with_ranks = [name for name in able if name not in without_ranks]
        ways = _measure(remote, with_ranks, _ways_to_try(with_ranks, attempts, choices), say)
        lost = {name: silence_of(remote.hosts[name], limit_s) for name in able}
    for name in able:
        hosts[name] = Surveyed(
            lost[name], hosts[name].facts, examinations.get(name, {}), choices.get(name), offsets[name]
        )
    return Survey(hosts, ways, problems)


def is_same_version(facts: Mapping[str, Any]) -> bool:
    return facts.get("version") == VERSION


def rounds(names: Sequence[str]) -> Iterator[list[Pair]]:
    """Yield all ordered pairs, in rounds in which each name has at most one partner, as in a tournament."""
    circle: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    half = len(circle) // 2
    for _ in range(len(circle) - 1):
        pairs = [(left, right) for left, right in zip(circle[:half], reversed(circle[half:]), strict=True)]
        there = [(left, right) for left, right in pairs if left is not None and right is not None]
        if there:
            yield there
            yield [(right, left) for left, right in there]
        circle.insert(1, circle.pop())


def offset_between(before: float, there: float, after: float) -> Offset:
    """Return the offset of a clock that was read between two readings of this machine's clock."""
    return Offset(there - (before + after) / 2, (after - before) / 2)


def _examine(remote: RemoteHosts, names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    for name in names:
        remote.tell(name, "examine")
    return {name: answer for name, (answer,) in answers(remote, names, "examined").items()}


def _offset(remote: RemoteHosts, name: str) -> Offset | None:
    """Return the offset of a host's clock from the quickest of several answers, which has the smallest error."""
    found: list[Offset] = []
    for number in range(_CLOCK_ROUNDS):
        before = time.time()
        remote.tell(name, "clock", number)
        answer = answers(remote, [name], "clock").get(name)
        after = time.time()
        if answer is None or answer[0] != number:
            break
        found.append(offset_between(before, float(answer[1]), after))
    return min(found, key=lambda one: one.error, default=None)


def _choose(
    remote: RemoteHosts, names: Sequence[str], interfaces: Sequence[str], without_ranks: Collection[str]
) -> tuple[dict[str, Sequence[Attempt]], dict[str, Choice], list[str]]:
    candidates = {name: candidates_of(remote.hosts[name], interfaces) for name in names}
    askers = [name for name in names if name not in without_ranks]
    ask_to_reach(remote, askers, listening(remote, names, candidates))
    attempts = reached(remote, askers)
    for name in without_ranks:
        remote.tell(name, "reached_all")
    return attempts, *choose(candidates, attempts)


def _ways_to_try(
    names: Sequence[str], attempts: Mapping[str, Sequence[Attempt]], choices: Mapping[str, Choice]
) -> dict[Pair, str | None]:
    """Return the address to use for each pair: the chosen one, or one that only this host reaches, or None."""
    found: dict[Pair, str | None] = {}
    for start in names:
        for end in names:
            if start != end:
                tried = [one for one in attempts.get(start, ()) if one.host == end and not one.problem]
                reached_at = tried[0].address if tried else None
                found[start, end] = choices[end].address.text if end in choices else reached_at
    return found


def _measure(
    remote: RemoteHosts, names: Sequence[str], addresses: Mapping[Pair, str | None], say: Callable[[str], None]
) -> dict[Pair, Way]:
    secret = make_secret()
    for name in names:
        remote.tell(name, "listen", secret)
    ports = {name: answer[0] for name, answer in answers(remote, names, "listening").items()}
    ways = dict.fromkeys(addresses, Way(problem="no address of it was reached"))
    for number, pairs in enumerate(rounds(names)):
        say(f"measuring {len(ways)} connections between hosts, round {number + 1}")
        asked = {}
        for start, end in pairs:
            address = addresses[start, end]
            if address is not None and end in ports:
                asked[start] = end
                remote.tell(start, "measure", number, address, ports[end], secret)
        found = answers(remote, list(asked), "measured")
        for start, end in asked.items():
            answered, *figures = found.get(start, [None])
            ways[start, end] = Way(*figures) if answered == number else Way(problem="its agent did not answer")
    for name in names:
        remote.tell(name, "reached_all")
    return ways
