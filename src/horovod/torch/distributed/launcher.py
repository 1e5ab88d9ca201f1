# SPDX-License-Identifier: Apache-2.0
"""Rendezvous that gives ranks started by horovodrun torch's store, so that init_process_group() needs no MASTER_ADDR.

Rank 0 serves a store of torch on a free port and puts its address into the launcher's rendezvous server.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import TCPStore

from horovod.common import settings
from horovod.common import topology as topology_module
from horovod.common.joining import bootstrap
from horovod.common.joining.interfaces import interface_address
from horovod.common.rendezvous.client import Connection, RendezvousError
from horovod.common.topology import Rendezvous, Topology
from horovod.torch.distributed.channel import seconds

_LOOK_AGAIN_S = 0.02
_groups = itertools.count()  # numbers of calls, which are equal on all ranks


def rendezvous(timeout: timedelta) -> Iterator[tuple[Any, int, int]]:
    """Yield the store, this rank and the number of ranks, as torch expects of a rendezvous."""
    chosen = settings.load(os.environ)
    topology = topology_module.discover(os.environ)
    place = topology_module.rendezvous(topology, chosen, os.environ)
    if chosen.text("HOROVOD_RENDEZVOUS") == "self" and topology.rank == 0:
        bootstrap.serve(place)
    store = _store(topology, place, chosen.text("HOROVOD_GLOO_IFACE"), timeout)
    yield store, topology.rank, topology.size
    raise RuntimeError(
        "The process group exists already: call destroy_process_group() before another init_process_group()"
    )


def _store(topology: Topology, place: Rendezvous, interface: str | None, timeout: timedelta) -> Any:
    key = f"torch.distributed {next(_groups)}"
    with Connection.open(place.address, place.port, place.secret, seconds(timeout)) as connection:
        if topology.rank == 0:
            own = interface_address(interface) if interface else connection.local_address
            store = TCPStore(own, 0, topology.size, is_master=True, timeout=timeout, wait_for_workers=False)
            connection.put(key, f"{own} {store.port}".encode())
            return store
        address, port = _look_up(connection, key, seconds(timeout)).decode().split()
    return TCPStore(address, int(port), topology.size, is_master=False, timeout=timeout, wait_for_workers=False)


def _look_up(connection: Connection, key: str, limit_s: float) -> bytes:
    give_up = time.monotonic() + limit_s
    while (value := connection.get(key)) is None:
        if time.monotonic() > give_up:
            raise RendezvousError(f"rank 0 did not call init_process_group within {limit_s:g} s")
        time.sleep(_LOOK_AGAIN_S)
    return value
