# SPDX-License-Identifier: Apache-2.0
"""Opens the hosts of a job: an agent on each, the same version everywhere, and an address by which each is reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import horovod
from horovod.runner.processes import CannotRunError
from horovod.runner.remote import command as commands
from horovod.runner.remote.addresses import Choice, allowed, choose
from horovod.runner.remote.host import Host, State
from horovod.runner.remote.hosts import RemoteHosts
from horovod.runner.remote.probing import CONNECT_LIMIT_S, Address, Attempt, ProbeListener, Target, own_addresses, reach

LAUNCHER = "the launcher's machine"
_PROBE_LIMIT_S = CONNECT_LIMIT_S + 8.0


class HostsError(CannotRunError):
    """Hosts that cannot be used, and why."""


@dataclass(frozen=True)
class OpenHosts:
    """Agents that wait for work, and the chosen addresses: of every remote host, and LAUNCHER."""

    remote: RemoteHosts
    choices: Mapping[str, Choice]


def open_hosts(
    host_commands: Mapping[str, Sequence[str]], interfaces: Sequence[str], limit_s: float, *, has_local_ranks: bool
) -> OpenHosts:
    """HostsError names every host that did not answer. The caller closes `remote`."""
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


def _require_answers(hosts: Sequence[Host], limit_s: float) -> None:
    failed = [host for host in hosts if host.state in (State.CONNECTING, State.LOST)]
    if not failed:
        return
    parts = []
    for host in failed:
        waited = f"no answer within {limit_s:g} s (--start-timeout)"
        lines = [f"  {host.name}: {waited if host.state is State.CONNECTING else host.problem or 'it ended at once'}"]
        lines += [f"      {line}" for line in host.complaints()]
        lines += [f"      {line}" for line in _advice(host)]
        parts.append("\n".join(lines))
    count = f"{len(failed)} of {len(hosts)} hosts" if len(hosts) > 1 else "the host"
    raise HostsError(f"no agent could be started on {count}:\n" + "\n".join(parts))


def _advice(host: Host) -> list[str]:
    said = " ".join(host.complaints())
    advice = []
    if "No module named" in said:
        advice.append("khorovod must be installed on every host, in the same place as here")
    elif "not found" in said or "No such file" in said:
        advice.append("the same Python must be on every host, in the same place as here")
    elif "Host key verification failed" in said:
        advice.append("connect once by hand and check the key, or add it to ~/.ssh/known_hosts")
    elif "Permission denied" in said:
        advice.append("ssh must log in without a password: ssh-copy-id, ssh-agent, or -i FILE")
    return [*advice, f"to see it: {commands.to_try(host.command)}"]


def _require_same_version(hosts: Mapping[str, Host]) -> None:
    different = {
        name: str(host.facts.get("version"))
        for name, host in hosts.items()
        if host.facts.get("version") != horovod.__version__
    }
    if different:
        listed = ", ".join(f"{name} has {version}" for name, version in different.items())
        raise HostsError(f"all hosts need the same version of khorovod: this one has {horovod.__version__}, {listed}")


def _choose_addresses(remote: RemoteHosts, interfaces: Sequence[str], has_local_ranks: bool) -> dict[str, Choice]:
    candidates = {LAUNCHER: allowed(own_addresses(), interfaces)}
    for name, host in remote.hosts.items():
        found = [Address(str(interface), str(text)) for interface, text in host.facts.get("addresses", [])]
        candidates[name] = allowed(found, interfaces)
    attempts = _try_all(remote, candidates, has_local_ranks)
    choices, problems = choose(candidates, attempts)
    if problems:
        raise HostsError("the hosts cannot reach each other:\n  " + "\n  ".join(problems))
    return choices


def _try_all(
    remote: RemoteHosts, candidates: Mapping[str, Sequence[Address]], has_local_ranks: bool
) -> dict[str, Sequence[Attempt]]:
    for name in remote.hosts:
        remote.tell(name, "listen")
    with closing(ProbeListener()) as listener:
        remote.wait(lambda host: (host.name, "listening") in remote.answers, _PROBE_LIMIT_S)
        targets = {LAUNCHER: _target(LAUNCHER, candidates, listener.port, listener.token)}
        for name in remote.hosts:
            if (name, "listening") in remote.answers:
                targets[name] = _target(name, candidates, *remote.answers[name, "listening"])
        for name in remote.hosts:
            others = [target for other, target in targets.items() if other != name]
            remote.tell(name, "reach", [[one.host, one.addresses, one.port, one.token] for one in others])
        attempts: dict[str, Sequence[Attempt]] = {}
        if has_local_ranks:
            attempts[LAUNCHER] = reach([target for name, target in targets.items() if name != LAUNCHER])
        remote.wait(lambda host: (host.name, "reached") in remote.answers, _PROBE_LIMIT_S)
    for name, host in remote.hosts.items():
        if host.is_gone or (name, "reached") not in remote.answers:
            raise HostsError(f"{name} was lost while hosts tried to reach each other: {host.problem or 'no answer'}")
        attempts[name] = [Attempt(*one) for one in remote.answers[name, "reached"][0]]
        remote.tell(name, "reached_all")
    return attempts


def _target(name: str, candidates: Mapping[str, Sequence[Address]], port: int, token: bytes) -> Target:
    return Target(name, tuple(address.text for address in candidates[name]), port, token)
