# SPDX-License-Identifier: Apache-2.0
"""Agents on the other hosts of an elastic job, started and released while the job runs. Threads wait for them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from horovod.launcher.elastic.host_book import Lost, NotOpened, Opened
from horovod.launcher.remote.adding import choose_addresses, greet
from horovod.launcher.remote.addresses import Choice
from horovod.launcher.remote.environment import that_travel
from horovod.launcher.remote.host import State
from horovod.launcher.remote.hosts import RemoteHosts
from horovod.launcher.remote.opening import LAUNCHER
from horovod.launcher.start.worker_environment import address_environment

_READY_LIMIT_S = 10.0


@dataclass(frozen=True)
class Reaching:
    """Ways to reach hosts. `commands_for` returns the command that starts an agent on each of the given hosts."""

    commands_for: Callable[[Sequence[str]], Mapping[str, Sequence[str]]]
    interfaces: Sequence[str]
    limit_s: float


class RemoteAgents:
    """Agents on the other hosts.

    Attributes:
        host_env: Variables of one host's workers only, for each host that ever had an agent.
        choices: The address of each host in use.
    """

    def __init__(self, remote: RemoteHosts, reaching: Reaching, *, has_local_ranks: bool) -> None:
        self.remote = remote
        self._reaching = reaching
        self.has_local_ranks = has_local_ranks
        self.host_env: dict[str, dict[str, str]] = {}
        self.choices: dict[str, Choice] = {}
        self.problems: dict[str, str] = {}  # why hosts that were tried before the job began cannot be used
        self._env: Mapping[str, str] = {}
        self._listen: Callable[[str], None] = lambda address: None
        self._notify: Callable[[Opened | NotOpened], None] = lambda event: None
        self._probing = threading.Lock()  # lets only one batch of new hosts test its connections at a time
        self._table = threading.Lock()
        self._open_hosts: set[str] = set()
        self._is_stopped = False

    def reach(self, hosts: Sequence[str]) -> None:
        """Start agents on the hosts and choose addresses at which they reach each other.

        Hosts that cannot be used are added to `problems`.
        """
        problems = greet(self.remote, self._reaching.commands_for(hosts), self._reaching.limit_s)
        with self._probing:
            new = [host for host in hosts if host not in problems]
            if new:
                added = choose_addresses(
                    self.remote, new, self.choices, self._reaching.interfaces, has_local_ranks=self.has_local_ranks
                )
                problems |= added.problems
                with self._table:
                    mine = {name: choice for name, choice in added.choices.items() if name in (*new, LAUNCHER)}
                    self.choices = {**self.choices, **mine}
            self.problems |= problems

    @property
    def launcher(self) -> str | None:
        """Return this machine's address as the other hosts see it, or None if there are no other hosts."""
        choice = self.launcher_choice
        return choice.address.text if choice is not None else None

    @property
    def launcher_choice(self) -> Choice | None:
        return self.choices.get(LAUNCHER)

    def begin(
        self,
        env: Mapping[str, str],
        listen: Callable[[str], None],
        notify: Callable[[Opened | NotOpened], None],
    ) -> None:
        """Set what new hosts need.

        Args:
            env: Environment of all workers.
            listen: Makes the rendezvous reachable at an address of this machine.
            notify: Receives `Opened` and `NotOpened`.
        """
        self._env, self._listen, self._notify = env, listen, notify

    # Called by the job's loop

    def open(self, hosts: tuple[str, ...]) -> None:
        threading.Thread(target=self._open, args=(hosts,), name="horovod-opening", daemon=True).start()

    def shut(self, host: str) -> None:
        self._open_hosts.discard(host)
        self._forget(host)

    def lost(self) -> list[Lost]:
        present = self.remote.hosts
        gone = [host for host in list(self._open_hosts) if host in present and present[host].is_gone]
        return [Lost(host, present[host].problem or "its agent has ended") for host in gone]

    def stop(self) -> None:
        self._is_stopped = True
        for name, host in self.remote.hosts.items():
            if host.state is State.CONNECTING:
                self.remote.let_go(name)

    # The methods below run in threads that wait for hosts.

    def _open(self, hosts: Sequence[str]) -> None:
        try:
            refused = self._try_to_open(hosts)
        except Exception as error:  # report any error: without an answer the host would never be tried again
            if self._is_stopped:
                return
            refused = dict.fromkeys(hosts, f"{type(error).__name__}: {error}")
        for host, why in refused.items():
            self._forget(host)
            self._notify(NotOpened(host, why))
        for host in hosts:
            if host not in refused:
                self._open_hosts.add(host)
                self._notify(Opened(host))

    def _try_to_open(self, hosts: Sequence[str]) -> dict[str, str]:
        """Open the hosts, and return the reason for each host that cannot be used."""
        unknown = [host for host in hosts if host not in self.choices and host not in self.problems]
        if unknown:
            self.reach(unknown)
        refused = {host: self.problems.pop(host) for host in hosts if host in self.problems}
        try:
            if self.launcher is not None:
                self._listen(self.launcher)
        except OSError as error:
            refused |= dict.fromkeys(hosts, f"the rendezvous cannot listen at {self.launcher}: {error}")
        return refused | self._send_environment([host for host in hosts if host not in refused])

    def _send_environment(self, hosts: Sequence[str]) -> dict[str, str]:
        """Send each agent its workers' environment through its connection, so that no command line contains the secret.

        Return the reason for each host that did not answer.
        """
        for host in hosts:
            own = address_environment(self.choices[host].address, self._env)
            self.host_env[host] = own | {"HOROVOD_GLOO_RENDEZVOUS_ADDR": self.choices[LAUNCHER].address.text}
            self.remote.begin(host, that_travel({**self._env, **self.host_env[host]}), os.getcwd())
        self.remote.wait(lambda host: host.name not in hosts or host.state is State.READY, _READY_LIMIT_S)
        present = self.remote.hosts
        ready = [host for host in hosts if host in present and present[host].state is State.READY]
        return {host: self._why_not(host) for host in hosts if host not in ready}

    def _why_not(self, host: str) -> str:
        return (self.remote.hosts[host].problem if host in self.remote.hosts else "") or "no answer"

    def _forget(self, host: str) -> None:
        self.remote.let_go(host)
        with self._table:
            self.choices = {name: choice for name, choice in self.choices.items() if name != host}
