# SPDX-License-Identifier: Apache-2.0
"""Ranks that start from plain variables: rank 0 itself serves the rendezvous, at an address that all know beforehand.

Needs nothing of Horovod, so that a benchmark can start ranks of another build.
"""

from __future__ import annotations

import base64
import secrets
import socket

LOCALHOST = "127.0.0.1"


def size_of(hosts: str) -> int:
    """The ranks on hosts that are written as for horovodrun -H."""
    return sum(int(host.rpartition(":")[2]) for host in hosts.split(","))


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses at this moment, all different."""
    probes = [socket.create_server((LOCALHOST, 0)) for _ in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


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
