# SPDX-License-Identifier: Apache-2.0
"""Ranks that start from plain variables: rank 0 itself serves the rendezvous, at an address that all know beforehand.

Needs nothing of Horovod, so that a benchmark can start ranks of another build.
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
    """The ranks on hosts that are written as for horovodrun -H."""
    return sum(int(host.rpartition(":")[2]) for host in hosts.split(","))


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses at this moment, all different, and that the kernel gives to nobody who asks for any."""
    probes: list[socket.socket] = []
    while len(probes) < count:
        with suppress(OSError):  # somebody uses that one
            probes.append(socket.create_server((LOCALHOST, _any_port())))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _any_port() -> int:
    """0 leaves the choice to the kernel: where it may give away all of them, none is better than another."""
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
    """What each rank of a job needs in its environment. `neighbours`: ranks on each host, all of them by default."""
    neighbours = neighbours or size
    secret = base64.b64encode(secrets.token_bytes(32)).decode()
    shared = {"HOROVOD_SIZE": str(size), "HOROVOD_LOCAL_SIZE": str(neighbours), "_HOROVOD_SECRET_KEY": secret}
    shared |= self_served(free_port(), address)
    return [shared | {"HOROVOD_RANK": str(rank), "HOROVOD_LOCAL_RANK": str(rank % neighbours)} for rank in range(size)]
