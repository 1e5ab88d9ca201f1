# SPDX-License-Identifier: Apache-2.0
"""Authenticated rendezvous under Horovod's names, for programs that start a job's workers themselves.

It does not use HTTP and has no key-value store for other programs. Each connection must prove that it knows the secret,
which workers get in their environment (see RendezvousServer.variables).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from horovod.common.log import logger
from horovod.common.rendezvous.protocol import make_secret
from horovod.common.rendezvous.server import Server
from horovod.common.topology import secret_variable
from horovod.launcher.elastic.mail import Mail
from horovod.launcher.elastic.progress import told_by
from horovod.launcher.elastic.vocabulary import Event, Listens, Preempted, Ready, reported_by
from horovod.launcher.start.hosts import SlotInfo

if TYPE_CHECKING:
    from horovod.launcher.elastic.driver import ElasticDriver

GET_RANK_AND_SIZE = "rank_and_size"
PUT_WORKER_ADDRESSES = "worker_addresses"
_EVERY_ADDRESS = "0.0.0.0"  # workers use the address that the caller passes to create_run_env_vars


@dataclass(frozen=True)
class RendezvousHandler:
    """Argument for RendezvousServer.start: the mail of the driver that assigns the workers' places."""

    mail: Mail[Event]


def create_rendezvous_handler(driver: ElasticDriver) -> RendezvousHandler:
    """Return the handler for `RendezvousServer.start` that serves this driver's workers."""
    return driver.rendezvous_handler


class RendezvousServer:
    """Rendezvous of one job's ranks: call `start()`, `init()` with a plan, then `stop()`.

    `gloo_run.create_run_env_vars` includes the secret of the server that this process runs at the given port.
    """

    def __init__(self, verbose: int = 0) -> None:
        """Create a server that is not started.

        Args:
            verbose: If not 0, log the missing ranks when a rendezvous takes long.
        """
        self.secret = make_secret()
        self.plan: list[SlotInfo] = []
        self.server: Server | None = None
        self.handler: RendezvousHandler | None = None
        self._verbose = verbose

    def start(self, handler_cls: RendezvousHandler | None = None) -> int:
        """Start listening, and return the port.

        Args:
            handler_cls: The result of create_rendezvous_handler for an elastic job, otherwise None.
        """
        if self.server is not None:
            raise RuntimeError(f"this RendezvousServer was started already, at port {self.server.port}")
        if handler_cls is not None and not isinstance(handler_cls, RendezvousHandler):
            raise TypeError(
                f"RendezvousServer.start() takes what create_rendezvous_handler(driver) returns, not {handler_cls!r}: "
                "ranks meet at an authenticated rendezvous, not over HTTP"
            )
        report = logger.warning if self._verbose else None
        if handler_cls is None:
            server = Server(_EVERY_ADDRESS, secret=self.secret, on_slow_meeting=report)
        else:
            server = elastic_server(_EVERY_ADDRESS, self.secret, handler_cls.mail.put, report)
        self.server, self.handler = server.start(), handler_cls
        _running[server.port] = self
        return server.port

    def init(self, host_assignments: Sequence[SlotInfo]) -> None:
        """Set the plan, which holds the place of each worker. ElasticDriver calls this for each generation."""
        ranks = sorted(slot.rank for slot in host_assignments)
        if ranks != list(range(len(ranks))) or any(slot.size != len(ranks) for slot in host_assignments):
            raise ValueError(f"the slots must have the ranks 0 to size - 1, not {ranks[:20]}")
        self.plan = list(host_assignments)

    def variables(self) -> dict[str, str]:
        """Return the variable that workers need besides create_run_env_vars.

        It holds the secret, so it must not be logged.
        """
        return secret_variable(self.secret)

    def stop(self) -> None:
        """Close the port and all connections. Safe to call twice."""
        server, self.server = self.server, None
        if server is not None:
            _running.pop(server.port, None)
            server.stop()


_running: weakref.WeakValueDictionary[int, RendezvousServer] = weakref.WeakValueDictionary()  # by port


def secret_at(port: int) -> bytes | None:
    """Return the secret of the RendezvousServer that this process runs at a port, or None."""
    server = _running.get(port)
    return server.secret if server is not None else None


def elastic_server(
    address: str, secret: bytes, put: Callable[[Event], None], on_slow_meeting: Callable[[str], None] | None = None
) -> Server:
    """Return a server, not started yet, that passes the workers' messages on to the driver as events."""
    return Server(
        address,
        secret=secret,
        on_ready=lambda *told: put(Ready(*told)),
        on_preempted=lambda birth: put(Preempted(birth)),
        on_progress=lambda birth, message: put(told_by(birth, message)),
        on_listening=lambda birth: put(Listens(birth)),
        on_report=lambda birth, message: put(reported_by(birth, message)),
        on_slow_meeting=on_slow_meeting,
    )
