# SPDX-License-Identifier: Apache-2.0
"""Network interfaces of this machine and their addresses. Every worker asks: the usual answers cost next to nothing."""

from __future__ import annotations

import fcntl
import socket
import struct

LOOPBACK = "127.0.0.1"
_GET_ADDRESS = 0x8915  # SIOCGIFADDR


def interface_address(interfaces: str) -> str:
    """The IPv4 (else IPv6) address of the first of a comma-separated list of network interfaces."""
    name = interfaces.split(",")[0].strip()
    address = _ipv4_address(name)
    if address is not None:
        return address
    import psutil

    known = psutil.net_if_addrs()
    for entry in known.get(name, ()):
        if entry.family == socket.AF_INET6:
            return str(entry.address).partition("%")[0]
    raise ValueError(f"HOROVOD_GLOO_IFACE: no interface {name!r} with an address here; there are {', '.join(known)}")


def loopback_interface() -> str:
    """The interface that owns 127.0.0.1."""
    return next((name for _, name in socket.if_nameindex() if _ipv4_address(name) == LOOPBACK), "lo")


def reachable_address() -> str:
    """An address at which other hosts may find this one: what its name stands for, else that of an interface."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        found = []
    named = [str(entry[4][0]) for entry in found]
    listed = [*named, *(_ipv4_address(name) for _, name in socket.if_nameindex())]
    return next((address for address in listed if address and not address.startswith("127.")), LOOPBACK)


def _ipv4_address(interface: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return None
        return socket.inet_ntoa(answer[20:24])
