# SPDX-License-Identifier: Apache-2.0
"""Opening of more hosts for a running job: those that can be used, and why the others cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from horovod.common.version import VERSION
from horovod.launcher.remote.addresses import Choice, allowed, choose
from horovod.launcher.remote.asking import ask_to_reach, candidates_of, listening, reached, target_of
from horovod.launcher.remote.host import State
from horovod.launcher.remote.hosts import RemoteHosts
from horovod.launcher.remote.opening import LAUNCHER, silence_of
from horovod.launcher.remote.probing import Address, Attempt, ProbeListener, own_addresses, reach


@dataclass(frozen=True)
class Added:
    """Result of opening more hosts.

    `choices` holds the addresses of usable hosts, new and old, and of LAUNCHER; `problems` holds the reason for each
    other host.
    """

    choices: Mapping[str, Choice]
    problems: Mapping[str, str]


def greet(remote: RemoteHosts, commands: Mapping[str, Sequence[str]], limit_s: float) -> dict[str, str]:
    """Start agents on these hosts and wait for their answers.

    Return the problems of hosts that cannot be used, which are released.
    """
    problems: dict[str, str] = {}
    for name, command in commands.items():
        try:
            remote.open(name, command)
        except OSError as error:
            problems[name] = str(error)
    remote.wait(lambda host: host.name not in commands or host.state is not State.CONNECTING, limit_s)
    for name in [name for name in commands if name not in problems]:
        host = remote.hosts[name]
        if (silence := silence_of(host, limit_s)) is not None:
            problems[name] = "\n".join(
                [silence.reason, *(f"  {line}" for line in (*silence.complaints, *silence.advice))]
            )
        elif host.facts.get("version") != VERSION:
            problems[name] = f"it has khorovod {host.facts.get('version')}, and this machine {VERSION}"
    for name in problems:
        remote.let_go(name)
    return problems


def choose_addresses(
    remote: RemoteHosts,
    new: Sequence[str],
    settled: Mapping[str, Choice],
    interfaces: Sequence[str],
    *,
    has_local_ranks: bool,
) -> Added:
    """Choose addresses for hosts that were greeted. Release hosts that cannot be used.

    Args:
        settled: The addresses that the job uses already, which stay unchanged.
    """
    old = [name for name in settled if name in remote.hosts and name not in new]
    candidates: dict[str, list[Address]] = {name: [settled[name].address] for name in old}
    candidates |= {name: candidates_of(remote.hosts[name], interfaces) for name in new}
    known = settled.get(LAUNCHER)
    candidates[LAUNCHER] = [known.address] if known is not None else allowed(own_addresses(), interfaces)
    attempts = _tried(remote, old, new, candidates, has_local_ranks)
    accepted = [name for name in (*([LAUNCHER] if has_local_ranks else []), *old) if name in attempts]
    if LAUNCHER not in accepted:
        accepted.append(LAUNCHER)
    choices, problems = {name: choice for name, choice in settled.items() if name in (*old, LAUNCHER)}, {}
    for name in new:  # one by one, to find out which host causes a problem
        if name not in attempts:
            problems[name] = remote.hosts[name].problem or "it did not try to reach the others in time"
            continue
        tried = [*accepted, name]
        found, wrong = choose(
            {one: candidates[one] for one in tried},
            {one: [a for a in attempts[one] if a.host in tried] for one in tried if one in attempts},
        )
        if wrong:
            problems[name] = "\n  ".join(wrong)
        else:
            accepted, choices = tried, found
    for name in problems:
        remote.let_go(name)
    return Added(choices, problems)


def _tried(
    remote: RemoteHosts,
    old: Sequence[str],
    new: Sequence[str],
    candidates: Mapping[str, Sequence[Address]],
    has_local_ranks: bool,
) -> dict[str, Sequence[Attempt]]:
    """Let new hosts try to reach all others, and all others try to reach them.

    Return the attempts of each host that answers in time.
    """
    with closing(ProbeListener()) as listener:
        targets = listening(remote, [*old, *new], candidates)
        targets[LAUNCHER] = target_of(LAUNCHER, candidates, listener.port, listener.token)
        of_new = {name: target for name, target in targets.items() if name in new}
        ask_to_reach(remote, new, targets)
        ask_to_reach(remote, old, of_new)
        attempts: dict[str, Sequence[Attempt]] = {LAUNCHER: reach(list(of_new.values()))} if has_local_ranks else {}
        return attempts | reached(remote, [*old, *new])
