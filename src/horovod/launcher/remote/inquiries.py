# SPDX-License-Identifier: Apache-2.0
"""Questions that an agent answers for the launcher: facts about its host, which hosts it reaches, and how fast."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from horovod.launcher.remote.frames import pack


class Inquiries:
    """Answers to the launcher's questions about a host and its network. Slow work runs in threads beside the workers.

    Register `bell` for reading: when it is readable, `take()` returns the finished answers of threads.
    """

    def __init__(self, tell: Callable[..., None]) -> None:
        """Create the object. `tell` sends a message to the launcher, in the thread that serves the verbs."""
        self._tell = tell
        self._listener: Any = None
        self._probed: Any = None  # the listener for probes of a running job
        self._found: deque[bytes] = deque()
        self.bell, self._ringer = socket.socketpair()

    def verbs(self) -> dict[str, Callable[..., None]]:
        """Return the methods that serve the launcher's verbs."""
        return {
            "listen": self._on_listen,
            "reach": self._on_reach,
            "reached_all": self._on_reached_all,
            "probe_listen": self._on_probe_listen,
            "probe": self._on_probe,
            "probe_end": self._on_probe_end,
            "measure": self._on_measure,
            "clock": self._on_clock,
            "examine": self._on_examine,
        }

    def take(self) -> list[bytes]:
        """Return the messages that are ready to be sent."""
        self.bell.recv(64)
        return [self._found.popleft() for _ in range(len(self._found))]

    def _on_listen(self, secret: bytes | None = None) -> None:
        """Listen for other hosts: they try this host's addresses or, with a secret, measure the connection to it."""
        self._on_reached_all()
        if secret is None:
            from horovod.launcher.remote.probing import ProbeListener

            self._listener = ProbeListener()
            self._tell("listening", self._listener.port, self._listener.token)
        else:
            from horovod.launcher.remote.measuring import MeasuringListener

            self._listener = MeasuringListener(secret)
            self._tell("listening", self._listener.port, b"")

    def _on_reach(self, targets: list[list[Any]]) -> None:
        from horovod.launcher.remote.probing import Target, reach

        wanted = [Target(host, tuple(addresses), port, token) for host, addresses, port, token in targets]
        self._find(
            lambda: pack("reached", [[one.host, one.address, one.seconds, one.problem] for one in reach(wanted)])
        )

    def _on_probe_listen(self, number: int) -> None:
        """Listen for hosts of a running job that may be unable to reach this one, until this round of probes ends."""
        from horovod.launcher.remote.probing import ProbeListener

        self._on_probe_end()
        self._probed = ProbeListener()
        self._tell("probe_listening", number, self._probed.port, self._probed.token)

    def _on_probe(self, number: int, targets: list[list[Any]], limit_s: float) -> None:
        from horovod.launcher.remote.probing import Target, reach

        wanted = [Target(host, (address,), port, token) for host, address, port, token in targets]
        self._find(lambda: pack("probed", number, [one.host for one in reach(wanted, limit_s) if not one.problem]))

    def _on_probe_end(self) -> None:
        if self._probed is not None:
            self._probed.close()
            self._probed = None

    def _on_measure(self, number: int, address: str, port: int, secret: bytes) -> None:
        from horovod.launcher.remote.measuring import measure

        def find() -> bytes:
            way = measure(address, port, secret)
            return pack("measured", number, way.round_trip_s, way.bandwidth, way.problem)

        self._find(find)

    def _on_clock(self, number: int) -> None:
        self._tell("clock", number, time.time())

    def _on_examine(self) -> None:
        self._find(lambda: pack("examined", examination_of_this_host()))

    def _find(self, work: Callable[[], bytes]) -> None:
        """Do the work in a thread. Its result is the answer."""

        def find() -> None:
            self._found.append(work())
            self._ringer.send(b"\0")

        threading.Thread(target=find, name="horovod-find", daemon=True).start()

    def _on_reached_all(self) -> None:
        """Stop listening, because all hosts have finished their attempts or measurements."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None


def about_this_host() -> dict[str, Any]:
    from horovod.common.torchrun_variables import free_port
    from horovod.common.version import VERSION
    from horovod.launcher.remote.probing import own_addresses

    return {
        "version": VERSION,
        "python": ".".join(map(str, sys.version_info[:3])),
        "hostname": socket.gethostname(),
        "cores": len(os.sched_getaffinity(0)),
        "port": free_port(),
        "time": time.time(),
        "addresses": [[address.interface, address.text] for address in own_addresses()],
    }


def examination_of_this_host() -> dict[str, Any]:
    """Return the results of `hvd doctor`'s checks of this host."""
    from horovod.machine import checks, gpus

    sections = (checks.processor(), checks.limits(), checks.shared_memory(), checks.kernel())
    return {
        "gpus": gpus.found(),
        "findings": [[one.name, one.value, one.advice] for findings in sections for one in findings],
    }
