# SPDX-License-Identifier: Apache-2.0
"""Where the processes of a data service find each other: dispatchers and workers register, trainers wait for them.

The board is the rendezvous server's store of values, with its authentication; whoever waits asks again and again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

import psutil

from horovod.common.not_yet import NotYet
from horovod.common.rendezvous.client import Connection, RendezvousError
from horovod.common.rendezvous.server import Server

Addresses = Mapping[str, Sequence[tuple[str, int]]]

_PAUSE_S = 0.05
_CONNECT_LIMIT_S = 2.0
_SHUTDOWN, _ENDED = "shutdown", "ended"


class ComputeService:
    """The board; lives in one process of the compute job, until `shutdown`."""

    def __init__(
        self, dispatchers: int, workers_per_dispatcher: int, key: bytes, nics: Sequence[str] | None = None
    ) -> None:
        if dispatchers < 1 or workers_per_dispatcher < 1:
            raise ValueError(
                f"a data service needs dispatchers and workers, not {dispatchers} and {workers_per_dispatcher} for each"
            )
        self._nics = nics
        self._server = Server("0.0.0.0", secret=key).start()
        self._server.put("dispatchers", str(dispatchers).encode())
        self._server.put("workers_per_dispatcher", str(workers_per_dispatcher).encode())
        self._workers = dispatchers * workers_per_dispatcher
        self._stopping = threading.Event()
        threading.Thread(target=self._watch, name="horovod-compute-service", daemon=True).start()

    def _watch(self) -> None:
        """The end comes when it was asked for and all trainers are gone: what they read from must not go before."""
        while not self._stopping.wait(4 * _PAUSE_S):
            if self._server.get(_SHUTDOWN) is not None and self._server.connections <= self._workers:
                self._server.put(_ENDED, b"")

    def addresses(self) -> Addresses:
        """Addresses of this host by network interface; the loopback, which only this host can use, comes last."""
        found = {}
        for nic, addresses in psutil.net_if_addrs().items():
            own = [each.address for each in addresses if each.family.name == "AF_INET"]
            if own and (self._nics is None or nic in self._nics):
                found[nic] = [(address, self._server.port) for address in own]
        return dict(sorted(found.items(), key=lambda item: item[1][0][0].startswith("127.")))

    def shutdown(self) -> None:
        self._stopping.set()
        self._server.stop()


class ComputeClient:
    """A connection to the board. Not for use by several threads at once."""

    def __init__(self, compute_addresses: Addresses, key: bytes, verbose: int = 1) -> None:
        self._connection = _connect(compute_addresses, key)
        self.local_address = self._connection.local_address
        self.dispatchers = int(self._connection.get("dispatchers") or 0)
        self.workers_per_dispatcher = int(self._connection.get("workers_per_dispatcher") or 0)

    def register_dispatcher(self, dispatcher_id: int, dispatcher_address: str) -> None:
        if not 0 <= dispatcher_id < self.dispatchers:
            raise ValueError(f"dispatcher {dispatcher_id} is not one of the {self.dispatchers} of this data service")
        self._connection.put(f"dispatcher.{dispatcher_id}", dispatcher_address.encode())

    def wait_for_dispatcher_registration(self, dispatcher_id: int, timeout: float) -> str:
        """The dispatcher's address; TimeoutError if it does not come in time."""
        return self._wait(f"dispatcher.{dispatcher_id}", timeout, f"dispatcher {dispatcher_id}").decode()

    def register_worker_for_dispatcher(self, dispatcher_id: int, worker_id: int) -> None:
        self._connection.put(f"worker.{dispatcher_id}.{worker_id}", b"")

    def wait_for_dispatcher_worker_registration(self, dispatcher_id: int, timeout: float) -> None:
        """Return once all workers of a dispatcher are there; TimeoutError if one does not come in time."""
        deadline = time.monotonic() + timeout
        for worker in range(self.workers_per_dispatcher):
            name = f"worker {worker} of dispatcher {dispatcher_id}"
            self._wait(f"worker.{dispatcher_id}.{worker}", max(0.0, deadline - time.monotonic()), name, timeout)

    def leave(self, trainer: int) -> None:
        """Say that a trainer needs the service no more."""
        self._connection.put(f"left.{trainer}", b"")

    def wait_for_leaving(self, trainers: int, timeout: float) -> None:
        """Return once all trainers have left; TimeoutError if one stays longer."""
        deadline = time.monotonic() + timeout
        for trainer in range(trainers):
            left = max(0.0, deadline - time.monotonic())
            self._wait(f"left.{trainer}", left, f"the end of trainer {trainer}", timeout)

    def shutdown(self) -> None:
        """End the service: its workers stop once no trainer is connected any more."""
        self._connection.put(_SHUTDOWN, b"")

    def wait_for_shutdown(self) -> None:
        """Return when the service has ended, or the process that holds the board is gone."""
        try:
            while self._connection.get(_ENDED) is None:
                time.sleep(4 * _PAUSE_S)
        except RendezvousError:
            return

    def close(self) -> None:
        self._connection.close()

    def _wait(self, key: str, seconds: float, what: str, limit: float | None = None) -> bytes:
        deadline = time.monotonic() + seconds
        while (value := self._connection.get(key)) is None:
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"the data service waited {limit or seconds:g} s for {what}: is the compute job running? "
                    "Raise the timeout if it is only slow to start"
                )
            time.sleep(_PAUSE_S)
        return value


def _connect(compute_addresses: Addresses, key: bytes) -> Connection:
    troubles = []
    for addresses in compute_addresses.values():
        for address, port in addresses:
            try:
                return Connection.open(address, port, key, _CONNECT_LIMIT_S)
            except RendezvousError as error:
                troubles.append(str(error))
    raise RendezvousError("the data service cannot be reached: " + ("; ".join(troubles) or "it names no address"))


# Messages of Horovod's own protocol, which this service does not speak.


class RegisterDispatcherRequest(NotYet): ...


class RegisterDispatcherWorkerRequest(NotYet): ...


class ShutdownRequest(NotYet): ...


class WaitForDispatcherRegistrationRequest(NotYet): ...


class WaitForDispatcherRegistrationResponse(NotYet): ...


class WaitForDispatcherWorkerRegistrationRequest(NotYet): ...


class WaitForShutdownRequest(NotYet): ...
