# SPDX-License-Identifier: Apache-2.0
"""Questions to several agents at once. Only answers that come in time count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from horovod.launcher.remote.addresses import allowed
from horovod.launcher.remote.host import Host
from horovod.launcher.remote.hosts import RemoteHosts
from horovod.launcher.remote.probing import CONNECT_LIMIT_S, Address, Attempt, Target

_ANSWER_LIMIT_S = CONNECT_LIMIT_S + 8.0


def candidates_of(host: Host, interfaces: Sequence[str]) -> list[Address]:
    found = [Address(str(interface), str(text)) for interface, text in host.facts.get("addresses", [])]
    return allowed(found, interfaces)


def listening(
    remote: RemoteHosts, names: Sequence[str], candidates: Mapping[str, Sequence[Address]]
) -> dict[str, Target]:
    """Return where the hosts listen for connection attempts, for those that answer in time."""
    for name in names:
        remote.tell(name, "listen")
    found = answers(remote, names, "listening")
    return {name: target_of(name, candidates, *answer) for name, answer in found.items()}


def ask_to_reach(remote: RemoteHosts, names: Sequence[str], targets: Mapping[str, Target]) -> None:
    for name in names:
        others = [target for other, target in targets.items() if other != name]
        remote.tell(name, "reach", [[one.host, one.addresses, one.port, one.token] for one in others])


def reached(remote: RemoteHosts, names: Sequence[str]) -> dict[str, Sequence[Attempt]]:
    """Return the attempts of each host that answers in time, and let all hosts stop listening."""
    found = answers(remote, names, "reached")
    for name in names:
        remote.tell(name, "reached_all")
    return {name: [Attempt(*one) for one in tried] for name, (tried,) in found.items()}


def answers(remote: RemoteHosts, names: Sequence[str], verb: str) -> dict[str, list[Any]]:
    """Return the answers that come in time, by host."""
    asked = set(names)
    remote.wait(lambda host: host.name not in asked or (host.name, verb) in remote.answers, _ANSWER_LIMIT_S)
    return {name: remote.answers.pop((name, verb)) for name in names if (name, verb) in remote.answers}


def target_of(name: str, candidates: Mapping[str, Sequence[Address]], port: int, token: bytes) -> Target:
    return Target(name, tuple(address.text for address in candidates[name]), port, token)
