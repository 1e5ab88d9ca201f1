# SPDX-License-Identifier: Apache-2.0
"""Hosts, addresses and ports under Horovod's names."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import psutil

from horovod.common.joining.interfaces import LOOPBACK, interface_address


def get_local_host_addresses() -> set[str]:
    """Return the IPv4 addresses of this machine."""
    return {
        str(entry.address)
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == socket.AF_INET
    }


def get_local_intfs(nic: str | None = None) -> set[str]:
    """Return the interfaces with the IPv4 loopback address, or only `nic` if this machine has it."""
    addresses = psutil.net_if_addrs()
    if nic is not None:
        return {nic} & set(addresses)
    return {
        name
        for name, entries in addresses.items()
        if any(entry.family == socket.AF_INET and entry.address == LOOPBACK for entry in entries)
    }


def resolve_host_address(host_name: str) -> str | None:
    """Return the IPv4 address of a host, or None if it cannot be resolved."""
    try:
        return socket.gethostbyname(host_name)
    except OSError:
        return None


def filter_local_addresses(all_host_names: Iterable[str]) -> list[str]:
    """Return the resolvable hosts that are not this machine."""
    local = get_local_host_addresses()
    return [name for name in all_host_names if resolve_host_address(name) not in local | {None}]


def get_driver_ip(nics: Sequence[str] | set[str] | None) -> str:
    """Return this machine's address on the first of the interfaces. Raise RuntimeError if none has an address."""
    for name in sorted(nics or get_local_intfs()):
        try:
            return interface_address(name)
        except ValueError:
            continue
    raise RuntimeError(f"none of the interfaces {', '.join(sorted(nics or ()))} has an address on this machine")


def find_port(server_factory: Callable[[tuple[str, int]], Any]) -> tuple[Any, int]:
    """Return a server that the factory made at a free port, and the port."""
    server = server_factory(("", 0))
    return server, int(
        server.server_address[1] if hasattr(server, "server_address") else server.socket.getsockname()[1]
    )
