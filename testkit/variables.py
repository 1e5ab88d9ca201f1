# SPDX-License-Identifier: Apache-2.0
"""Environment of ranks for which rank 0 serves the rendezvous, at an address that all ranks know beforehand.

This module needs no part of Horovod, so that a benchmark can start ranks of another build.
"""

from __future__ import annotations

import base64
import secrets
import socket
from contextlib import suppress
from pathlib import Path

LOCALHOST = "127.0.0.1"
_LOWEST_PORT = 10_000
_GIVEN_BY_KERNEL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def size_of(hosts: str) -> int:
    """Return the number of ranks on hosts that are written as for horovodrun -H."""
    return sum(int(host.rpartition(":")[2]) for host in hosts.split(","))


def free_ports(count: int) -> list[int]:
    """Return different unused ports, outside the range from which the kernel assigns ports automatically."""
    probes: list[socket.socket] = []
    while len(probes) < count:
        with suppress(OSError):  # another process uses that port
            probes.append(socket.create_server((LOCALHOST, _any_port())))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _any_port() -> int:
    """Return a random port below the kernel's automatic range; 0, any port, if that range leaves too few."""
    first = int(_GIVEN_BY_KERNEL.read_text().split()[0])
    return _LOWEST_PORT + secrets.randbelow(first - _LOWEST_PORT) if first > _LOWEST_PORT + 1000 else 0


def free_port() -> int:
    return free_ports(1)[0]


def self_served(port: int, address: str = LOCALHOST) -> dict[str, str]:
    return {
        "HOROVOD_RENDEZVOUS": "self",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
    }


def of_ranks(size: int, neighbours: int | None = None, address: str = LOCALHOST) -> list[dict[str, str]]:
    """Return the environment of each rank of a job. `neighbours`: ranks on each host (default: all on one host)."""
    neighbours = neighbours or size
    secret = base64.b64encode(secrets.token_bytes(32)).decode()
    shared = {"HOROVOD_SIZE": str(size), "HOROVOD_LOCAL_SIZE": str(neighbours), "_HOROVOD_SECRET_KEY": secret}
    shared |= self_served(free_port(), address)
    return [shared | {"HOROVOD_RANK": str(rank), "HOROVOD_LOCAL_RANK": str(rank % neighbours)} for rank in range(size)]
