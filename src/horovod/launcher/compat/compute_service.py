# SPDX-License-Identifier: Apache-2.0
"""Meeting point of a data service's processes: dispatchers and workers register, and trainers wait for them.

It uses the value store of an authenticated rendezvous server. Waiting processes poll it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import psutil

from horovod.common.rendezvous.client import Connection, RendezvousError
from horovod.common.rendezvous.server import Server
from horovod.launcher.compat.timeout import Timeout

T = TypeVar("T")
Addresses = Mapping[str, Sequence[tuple[str, int]]]

_PAUSE_S = 0.05
_CONNECT_LIMIT_S = 2.0
_RETIRING, _ENDED = "retiring", "ended"


class ComputeService:
    """Server of the data service's registrations. It lives in one process of the compute job until `shutdown`."""

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
        """End a retiring service once no trainer is connected, because the trainers read from it until then."""
        while not self._stopping.wait(4 * _PAUSE_S):
            if self._server.get(_RETIRING) is not None and self._server.connections <= self._workers:
                self._server.put(_ENDED, b"")

    def addresses(self) -> Addresses:
        """Return this host's addresses by network interface.

        The loopback comes last, because only this host can use it.
        """
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
    """Connection to the ComputeService. Several threads may use it at once."""

    def __init__(self, compute_addresses: Addresses, key: bytes, verbose: int = 1) -> None:
        self._connection = _connect(compute_addresses, key)
        self._lock = threading.Lock()
        self._is_closed = False
        self.local_address = self._connection.local_address
        self.dispatchers = int(self._connection.get("dispatchers") or 0)
        self.workers_per_dispatcher = int(self._connection.get("workers_per_dispatcher") or 0)

    def register_dispatcher(self, dispatcher_id: int, dispatcher_address: str) -> None:
        """Publish a dispatcher's address. Raise ValueError if this id is already registered."""
        key = self._dispatcher_key(dispatcher_id)
        if not self._ask(lambda it: it.put(key, dispatcher_address.encode(), only_if_new=True)):
            first = (self._ask(lambda it: it.get(key)) or b"").decode()
            raise ValueError(
                f"cannot register dispatcher {dispatcher_id} at {dispatcher_address}: a dispatcher with this id is "
                f"registered at {first}; give each dispatcher an id of its own"
            )

    def wait_for_dispatcher_registration(self, dispatcher_id: int, timeout: float) -> str:
        """Return the dispatcher's address. Raise TimeoutException if it does not register in time."""
        key = self._dispatcher_key(dispatcher_id)
        return self._wait_for_value(key, _patience(timeout), f"dispatcher {dispatcher_id}").decode()

    def register_worker_for_dispatcher(self, dispatcher_id: int, worker_id: int) -> None:
        """Register a worker of a dispatcher. Its id must be unique among the dispatcher's workers."""
        group = self._workers_of(dispatcher_id)
        self._ask(lambda it: it.add(group, str(worker_id)))

    def wait_for_dispatcher_worker_registration(self, dispatcher_id: int, timeout: float) -> None:
        """Wait for all workers of a dispatcher. Raise TimeoutException if one does not register in time."""
        group, limit = self._workers_of(dispatcher_id), _patience(timeout)
        wanted = self.workers_per_dispatcher
        while (found := self._ask(lambda it: it.count(group))) < wanted:
            limit.check_time_out_for(f"{wanted} workers of dispatcher {dispatcher_id}, of which {found} came")
            time.sleep(_PAUSE_S)

    def leave(self, trainer: int) -> None:
        """Report that a trainer no longer needs the service."""
        self._ask(lambda it: it.put(f"left.{trainer}", b""))

    def wait_for_leaving(self, trainers: int, timeout: float) -> None:
        """Wait until all trainers have left. Raise TimeoutException if one stays longer."""
        limit = _patience(timeout)
        for trainer in range(trainers):
            self._wait_for_value(f"left.{trainer}", limit, f"the end of trainer {trainer}")

    def retire(self) -> None:
        """End the service once no trainer is connected any more."""
        self._ask(lambda it: it.put(_RETIRING, b""))

    def shutdown(self) -> None:
        """End the service now, even if trainers still read from it. Its workers stop."""
        self._ask(lambda it: it.put(_ENDED, b""))

    def wait_for_shutdown(self) -> None:
        """Wait until the service has ended or the process of the ComputeService is gone."""
        try:
            while self._ask(lambda it: it.get(_ENDED)) is None:
                time.sleep(_PAUSE_S)
        except RendezvousError:
            return

    def close(self) -> None:
        """Close the connection. Waiting calls in other threads end with a RendezvousError."""
        with self._lock:
            self._is_closed = True
            self._connection.close()

    def _ask(self, request: Callable[[Connection], T]) -> T:
        """Send a request and return its answer. One thread at a time."""
        with self._lock:
            if self._is_closed:
                raise RendezvousError(
                    "this client of the data service is closed (by close() or a failed request): make another one"
                )
            try:
                return request(self._connection)
            except RendezvousError:
                # A late answer must not be taken for the answer to the next request, so close the connection.
                self._is_closed = True
                self._connection.close()
                raise

    def _wait_for_value(self, key: str, limit: Timeout, what: str) -> bytes:
        while (value := self._ask(lambda it: it.get(key))) is None:
            limit.check_time_out_for(what)
            time.sleep(_PAUSE_S)
        return value

    def _dispatcher_key(self, dispatcher_id: int) -> str:
        return f"dispatcher.{self._checked(dispatcher_id)}"

    def _workers_of(self, dispatcher_id: int) -> str:
        return f"workers.{self._checked(dispatcher_id)}"

    def _checked(self, dispatcher_id: int) -> int:
        if not 0 <= dispatcher_id < self.dispatchers:
            raise IndexError(
                f"dispatcher {dispatcher_id} is not one of this data service, whose {self.dispatchers} dispatchers "
                f"have the ids 0 to {self.dispatchers - 1}"
            )
        return dispatcher_id


def _patience(timeout: float) -> Timeout:
    return Timeout(
        timeout,
        "the data service waited {timeout} s for {activity}: is the compute job running? Raise the timeout if it is "
        "only slow to start",
    )


def _connect(compute_addresses: Addresses, key: bytes) -> Connection:
    troubles = []
    for addresses in compute_addresses.values():
        for address, port in addresses:
            try:
                return Connection.open(address, port, key, _CONNECT_LIMIT_S)
            except RendezvousError as error:
                troubles.append(str(error))
    raise RendezvousError("the data service cannot be reached: " + ("; ".join(troubles) or "it names no address"))
