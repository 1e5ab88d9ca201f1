# SPDX-License-Identifier: Apache-2.0
"""Rendezvous server in this process, for ranks on (simulated) hosts."""

from __future__ import annotations

from horovod.common.rendezvous.protocol import make_secret
from horovod.common.rendezvous.server import Server
from horovod.launcher.start.hosts import SlotInfo, get_host_assignments, parse_hosts
from horovod.launcher.start.worker_environment import rendezvous_environment, slot_environment
from testkit.variables import LOCALHOST, size_of


class Meeting:
    """Rendezvous server that runs until it is closed. `place` is the environment with which ranks connect to it."""

    def __init__(self, hosts: str) -> None:
        self.slots: list[SlotInfo] = get_host_assignments(parse_hosts(hosts), size_of(hosts))
        secret = make_secret()
        self._server = Server(LOCALHOST, secret=secret).start()
        self.place = rendezvous_environment(LOCALHOST, self._server.port, secret)

    def environment(self, slot: SlotInfo) -> dict[str, str]:
        return self.place | slot_environment(slot)

    def close(self) -> None:
        self._server.stop()
