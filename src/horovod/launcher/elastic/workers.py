# SPDX-License-Identifier: Apache-2.0
"""Workers of an elastic job as its launcher starts them. Their output is forwarded under their birth ids."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from horovod.common.joining.elastic_place import worker_variables
from horovod.launcher.elastic.places import Place
from horovod.launcher.elastic.vocabulary import Ended, Slot
from horovod.launcher.output.forwarding import OutputForwarder
from horovod.launcher.start import processes
from horovod.launcher.start.not_run import StartError, host_elsewhere
from horovod.launcher.start.placement import Placer
from horovod.launcher.start.processes import describe_exit

_NOT_STARTED = 127


@dataclass(frozen=True)
class Program:
    """Command and environment of all workers. `env` holds all variables that do not differ from worker to worker."""

    command: Sequence[str]
    env: Mapping[str, str]
    env_of_host: Callable[[str], Mapping[str, str]] = lambda host: {}  # variables of one host's workers only


class Workers:
    """WorkerPlacer that uses the launcher's process trees.

    It adds the host of each worker to `hosts`, by birth id, where the placer reads it.
    """

    def __init__(self, program: Program, placer: Placer, forwarder: OutputForwarder, hosts: dict[int, str]) -> None:
        self._program = program
        self._placer = placer
        self._forwarder = forwarder
        self._hosts = hosts
        self._sent: int | None = None
        self._has_started = False
        self.running: set[int] = set()  # birth ids that were started and have not ended

    def start(self, birth: int, slot: Slot, planned: Place) -> None:
        self._hosts[birth] = slot[0]
        pipes = self._placer.start(birth, self._program.command, self._environment(birth, slot, planned))
        self._forwarder.add(birth, *pipes)
        self.running.add(birth)

    def signal(self, birth: int, number: int) -> None:
        self._placer.signal(birth, number)

    def forward(self, number: int) -> None:
        """Pass a user's signal on to the running workers."""
        for birth in self.running:
            self._placer.signal(birth, number)

    def signal_all(self, number: int) -> None:
        """Send a signal to all workers, including those that are still being started."""
        self._sent = number
        self._forwarder.read_out(self.running)  # a slow reader must not delay workers that are about to end
        for birth in self.running:
            self._placer.signal(birth, number)

    def busy_hosts(self) -> frozenset[str]:
        return frozenset(self._hosts[birth] for birth in self.running)

    def heard(self, event: processes.Event) -> Ended | None:
        """Return the end of a worker that this event reports, if any.

        Raise OSError if not even the first worker can start.
        """
        match event:
            case processes.Started(birth, _):
                self._has_started = True
                if self._sent is not None:
                    self._placer.signal(birth, self._sent)
            case processes.Refused(birth, number):
                self.running.discard(birth)
                text = f"worker {birth} could not be started: {os.strerror(number)}"
                if not self._has_started:
                    host = host_elsewhere(self._hosts[birth])
                    raise StartError(number, text, self._program.command[0], host)
                return Ended(birth, _NOT_STARTED, text)
            case processes.Ended(birth, code, how):
                self.running.discard(birth)
                self._forwarder.read_out([birth])
                return Ended(birth, code, how or describe_exit(code))
        return None

    def _environment(self, birth: int, slot: Slot, planned: Place) -> dict[str, str]:
        own = worker_variables(birth, slot[0], planned)
        return {**self._program.env, **self._program.env_of_host(slot[0]), **own}
