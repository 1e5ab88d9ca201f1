# SPDX-License-Identifier: Apache-2.0
"""Opening of a job's hosts: an agent of one version on each host, and an address at which each host is reached."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from horovod.common.version import VERSION
from horovod.launcher.remote.addresses import Choice, allowed, choose
from horovod.launcher.remote.advice import advice_for
from horovod.launcher.remote.asking import ask_to_reach, candidates_of, listening, reached, target_of
from horovod.launcher.remote.host import Host, State
from horovod.launcher.remote.hosts import RemoteHosts
from horovod.launcher.remote.probing import Attempt, ProbeListener, own_addresses, reach
from horovod.launcher.start.processes import CannotRunError

LAUNCHER = "the launcher's machine"


class HostsError(CannotRunError):
    """Error: hosts cannot be used. The text gives the reasons."""


@dataclass(frozen=True)
class OpenHosts:
    """Agents that wait for work, and the chosen address of each remote host and of LAUNCHER."""

    remote: RemoteHosts
    choices: Mapping[str, Choice]


def open_hosts(
    host_commands: Mapping[str, Sequence[str]], interfaces: Sequence[str], limit_s: float, *, has_local_ranks: bool
) -> OpenHosts:
    """Start the agents and choose addresses. The caller closes `remote`.

    Raises:
        HostsError: Some hosts did not answer or cannot reach each other; the text names them.
    """
    remote = RemoteHosts(host_commands)
    try:
        remote.wait(lambda host: host.state is not State.CONNECTING, limit_s)
        _require_answers(list(remote.hosts.values()), limit_s)
        _require_same_version(remote.hosts)
        choices = _choose_addresses(remote, interfaces, has_local_ranks)
    except BaseException:
        remote.close()
        raise
    return OpenHosts(remote, choices)


@dataclass(frozen=True)
class Silence:
    """Explanation why no agent could be started on a host: the reason, the output of ssh and the host, and advice."""

    reason: str
    complaints: Sequence[str]
    advice: Sequence[str]

    def told(self, name: str) -> list[str]:
        return [f"  {name}: {self.reason}", *(f"      {line}" for line in (*self.complaints, *self.advice))]


def silence_of(host: Host, limit_s: float) -> Silence | None:
    """Return why a host's agent does not answer, or None if it has answered and is still there."""
    if host.state not in (State.CONNECTING, State.LOST):
        return None
    waited = f"no answer within {limit_s:g} s (--start-timeout)"
    reason = waited if host.state is State.CONNECTING else host.problem or "it ended at once"
    complaints = host.complaints()
    return Silence(reason, complaints, advice_for(complaints, host.command, sys.executable))


def _require_answers(hosts: Sequence[Host], limit_s: float) -> None:
    silent = {host.name: silence for host in hosts if (silence := silence_of(host, limit_s)) is not None}
    if not silent:
        return
    lines = [line for name, silence in silent.items() for line in silence.told(name)]
    count = f"{len(silent)} of {len(hosts)} hosts" if len(hosts) > 1 else "the host"
    raise HostsError(f"no agent could be started on {count}:\n" + "\n".join(lines))


def _require_same_version(hosts: Mapping[str, Host]) -> None:
    different = {
        name: str(host.facts.get("version")) for name, host in hosts.items() if host.facts.get("version") != VERSION
    }
    if different:
        listed = ", ".join(f"{name} has {version}" for name, version in different.items())
        raise HostsError(f"all hosts need the same version of khorovod: this one has {VERSION}, {listed}")


def _choose_addresses(remote: RemoteHosts, interfaces: Sequence[str], has_local_ranks: bool) -> dict[str, Choice]:
    candidates = {LAUNCHER: allowed(own_addresses(), interfaces)}
    candidates |= {name: candidates_of(host, interfaces) for name, host in remote.hosts.items()}
    with closing(ProbeListener()) as listener:
        targets = listening(remote, list(remote.hosts), candidates)
        targets[LAUNCHER] = target_of(LAUNCHER, candidates, listener.port, listener.token)
        ask_to_reach(remote, list(remote.hosts), targets)
        attempts: dict[str, Sequence[Attempt]] = {}
        if has_local_ranks:
            attempts[LAUNCHER] = reach([target for name, target in targets.items() if name != LAUNCHER])
        attempts |= reached(remote, list(remote.hosts))
    for name, host in remote.hosts.items():
        if host.is_gone or name not in attempts:
            raise HostsError(f"{name} was lost while hosts tried to reach each other: {host.problem or 'no answer'}")
    choices, problems = choose(candidates, attempts)
    if problems:
        raise HostsError("the hosts cannot reach each other:\n  " + "\n  ".join(problems))
    return choices
