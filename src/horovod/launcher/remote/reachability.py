# SPDX-License-Identifier: Apache-2.0
"""Test of whether the hosts of a running job still reach each other, in rounds of a few seconds."""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from horovod.launcher.remote.addresses import Choice
from horovod.launcher.remote.hosts import RemoteHosts
from horovod.launcher.remote.opening import LAUNCHER
from horovod.launcher.remote.probing import ProbeListener, Target, reach

ROUND_S = 3.0
LISTEN_S = 1.2  # part of a round in which all hosts report where they listen
CONNECT_S = 1.5  # part of a round for connections; the rest is for the answers to arrive

HostPair = tuple[str, str]


def find_cuts(
    remote: RemoteHosts,
    choices: Mapping[str, Choice],
    elsewhere: Container[str],
    number: int,
    pairs: Sequence[HostPair],
) -> frozenset[HostPair]:
    """Return the pairs of which one host does not reach the other, or does not answer in time.

    Args:
        remote: The agents of the other hosts.
        choices: The addresses that the job uses, by host. A lost host has no address any more.
        elsewhere: Hosts that have or had an agent. All others are names of the launcher's machine, which probes too.
        number: The number of the round. Late answers to another round are dropped.
        pairs: The pairs of hosts to test.
    """
    agent_of = {host: host if host in elsewhere else LAUNCHER for pair in pairs for host in pair}
    ways = {(agent_of[one], agent_of[other]) for pair in pairs for one, other in (pair, pair[::-1])}
    ways = {(one, other) for one, other in ways if one != other}
    reached = _reached(remote, choices, number, ways) if ways else set()
    return frozenset(
        pair
        for pair in pairs
        for way in [(agent_of[pair[0]], agent_of[pair[1]])]
        if way[0] != way[1] and not {way, way[::-1]} <= reached
    )


def _reached(
    remote: RemoteHosts, choices: Mapping[str, Choice], number: int, ways: set[tuple[str, str]]
) -> set[tuple[str, str]]:
    """Return the pairs of `ways` whose first host reaches the second."""
    deadline = time.monotonic() + ROUND_S
    names = sorted({name for way in ways for name in way} - {LAUNCHER})
    addresses = {name: choices[name].address.text for name in (*names, LAUNCHER) if name in choices}
    with closing(ProbeListener()) as own, _listening(remote, names):
        for name in names:
            remote.tell(name, "probe_listen", number)
        found = _answers(remote, names, "probe_listening", number, time.monotonic() + LISTEN_S)
        listeners = {name: (port, token) for name, (port, token) in found.items()} | {LAUNCHER: (own.port, own.token)}
        targets = {
            name: [
                Target(other, (addresses[other],), *listeners[other])
                for one, other in sorted(ways)
                if one == name and other in listeners and other in addresses
            ]
            for name in (*names, LAUNCHER)
        }
        for name in names:
            told = [[one.host, one.addresses[0], one.port, one.token] for one in targets[name]]
            remote.tell(name, "probe", number, told, CONNECT_S)
        reached = {(LAUNCHER, one.host) for one in reach(targets[LAUNCHER], CONNECT_S) if not one.problem}
        for name, (others,) in _answers(remote, names, "probed", number, deadline).items():
            reached |= {(name, str(other)) for other in others}
    return reached


@contextmanager
def _listening(remote: RemoteHosts, names: Sequence[str]) -> Iterator[None]:
    try:
        yield
    finally:
        for name in names:
            remote.tell(name, "probe_end")


def _answers(
    remote: RemoteHosts, names: Sequence[str], verb: str, number: int, deadline: float
) -> dict[str, list[Any]]:
    """Return the agents' answers to this question, by host, as far as they come before the deadline."""

    def has_answered(name: str) -> bool:
        answer = remote.answers.get((name, verb))
        return answer is not None and bool(answer[0] == number)

    remote.wait(lambda host: host.name not in names or has_answered(host.name), deadline - time.monotonic())
    return {name: remote.answers.pop((name, verb))[1:] for name in names if has_answered(name)}
