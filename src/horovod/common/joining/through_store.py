# SPDX-License-Identifier: Apache-2.0
"""Setup of a world without our launcher: the ranks meet through a key-value store that they share.

Rank 0 makes the world's secret and puts it into the store, so the store must be as trusted as the launcher's
environment.
"""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from horovod._engine import EngineError
from horovod.common import topology as topology_module
from horovod.common.exceptions import HorovodInitializationError
from horovod.common.joining import bootstrap
from horovod.common.joining.bootstrap import Started
from horovod.common.joining.interfaces import address_towards, interface_address
from horovod.common.settings import Settings
from horovod.common.topology import Topology
from horovod.common.version import VERSION

_ANSWER_SLACK_S = 2.0
# No packet is sent to this address. The route to it shows which of our own addresses would be used.
_SOMEWHERE_ELSE = ("192.0.2.1", 9)


class Store(Protocol):
    """Methods that this module needs of a store. `get` is called only for keys for which `wait` has returned True."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def check(self, key: str, /) -> bool: ...
    def wait(self, keys: Sequence[str], timeout_s: float, /) -> bool:
        """Wait until all keys exist. Return False if the time is over before."""

    def delete(self, key: str, /) -> None: ...


def start(
    store: Store, settings: Settings, topology: Topology, store_host: str | None, timeout_s: float, who: str
) -> Started:
    """Join the world of the ranks that share `store`.

    Args:
        store_host: Host of the store, if known. Other ranks can reach this host's address on the route there.
        who: Name of the world in error messages.
    """
    try:
        return _Meeting(store, settings, topology, timeout_s, who).start(store_host)
    except (EngineError, OSError) as error:
        why = error.args[1] if isinstance(error, EngineError) else error
        raise HorovodInitializationError(f"{who} could not be set up on rank {topology.rank}: {why}") from error


class _Meeting:
    def __init__(self, store: Store, settings: Settings, topology: Topology, timeout_s: float, who: str) -> None:
        self._store = store
        self._settings = settings
        self._topology = topology
        self._who = who
        self._deadline = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        # A store may be used for several worlds. Every rank counts its worlds on this store, so all ranks get one
        # number.
        self._round = store.add(f"worlds of rank {topology.rank}", 1)

    def start(self, store_host: str | None) -> Started:
        topology, settings = self._topology, self._settings
        secret, world_id = self._credentials()
        address = self._own_address(store_host)
        world = bootstrap.open_world(settings, topology, 0, address, world_id, secret)
        try:
            infos = self._exchange(bootstrap.introduce(world, topology, address) | {"version": VERSION})
            world.connect(bootstrap.peers(infos), settings.number("HOROVOD_GLOO_TIMEOUT_SECONDS"))
        except BaseException:
            world.close()
            raise
        hosts = [str(info["host"]) for info in infos]
        placed = topology_module.after_meeting(topology, hosts, [int(info["local_rank"]) for info in infos])
        return Started(world, placed, topology_module.is_homogeneous(hosts))

    def _credentials(self) -> tuple[bytes, str]:
        if self._topology.rank == 0:
            text = secrets.token_hex(32) + secrets.token_hex(16)
            self._store.set(self._key("secret"), text)
        else:
            text = self._await("secret", "rank 0 did not come").decode()
        return bytes.fromhex(text[:64]), text[64:]

    def _own_address(self, store_host: str | None) -> str:
        interface = self._settings.text("HOROVOD_GLOO_IFACE")
        if interface:
            return interface_address(interface)
        self._store.set(self._key(f"host {self._topology.rank}"), self._topology.host)
        address = address_towards((store_host, _SOMEWHERE_ELSE[1])) if store_host else None
        if address is not None and not ipaddress.ip_address(address).is_loopback:
            return address
        # No address was found, or a loopback address: the store is on this host, or its host is unknown. That suffices
        # if all ranks are on this host.
        hosts = [self._await(f"host {rank}", f"rank {rank} did not come") for rank in range(self._topology.size)]
        if len(set(hosts)) == 1:
            return address or "127.0.0.1"
        return address_towards(_SOMEWHERE_ELSE) or address or socket.gethostbyname(socket.gethostname())

    def _exchange(self, info: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the info of every rank, by rank.

        Rank 0 collects and publishes them, so that N ranks need 2N requests instead of N².
        """
        if self._topology.rank != 0:
            self._store.set(self._key(f"info {self._topology.rank}"), json.dumps(info))
            answer = json.loads(self._await("infos", "rank 0 did not answer", slack_s=_ANSWER_SLACK_S))
        else:
            answer = self._collect(info)
            self._store.set(self._key("infos"), json.dumps(answer))
            with suppress(Exception):  # not every store can delete, and the secret is valid for this world only
                self._store.delete(self._key("secret"))
        if isinstance(answer, str):
            raise HorovodInitializationError(f"{self._who} could not be set up on rank {self._topology.rank}: {answer}")
        return list(answer)

    def _collect(self, own: dict[str, Any]) -> list[dict[str, Any]] | str:
        """Return all infos, or the error text."""
        keys = [self._key(f"info {rank}") for rank in range(1, self._topology.size)]
        if keys and not self._store.wait(keys, self._time_left()):
            missing = [str(rank) for rank, key in enumerate(keys, 1) if not self._store.check(key)]
            return (
                f"ranks {', '.join(missing)} of {self._topology.size} did not come within {self._timeout_s:g} s. "
                "Have they ended, or do they not call the same init_process_group or new_group?"
            )
        infos = [own] + [json.loads(self._store.get(key)) for key in keys]
        for rank, info in enumerate(infos):
            if info["version"] != own["version"]:
                return f"rank 0 has version {own['version']} of khorovod, but rank {rank} has {info['version']}"
        return infos

    def _await(self, name: str, complaint: str, slack_s: float = 0.0) -> bytes:
        if not self._store.wait([self._key(name)], self._time_left() + slack_s):
            raise HorovodInitializationError(
                f"{self._who} could not be set up on rank {self._topology.rank}: {complaint} within "
                f"{self._timeout_s:g} s. Has it ended, or does it not call the same init_process_group or new_group?"
            )
        return self._store.get(self._key(name))

    def _key(self, name: str) -> str:
        return f"horovod world {self._round}: {name}"

    def _time_left(self) -> float:
        return max(0.001, self._deadline - time.monotonic())


def place_of(rank: int, size: int) -> Topology:
    """Return the topology of a rank that knows only its number. Its host's other ranks are learnt from the exchange."""
    return Topology(
        rank, size, host=topology_module.host_name(os.environ), source="the store", local_given=False, cross_given=False
    )
