# SPDX-License-Identifier: Apache-2.0
"""Network interfaces of this machine and their addresses.

Common questions are answered fast, because every worker asks them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

from horovod.common.settings_values import shown

LOOPBACK = "127.0.0.1"
_GET_ADDRESS = 0x8915  # SIOCGIFADDR
_GET_FLAGS = 0x8913  # SIOCGIFFLAGS
# Errors of exhausted resources, which say nothing about loopback.
_SCARCITY = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_IS_UP = 0x1  # IFF_UP
_CONNECT_LIMIT_S = 5.0  # limit of a connection to this machine; only a firewall that drops packets makes it wait
_LONGEST_NAME = 15  # IFNAMSIZ - 1


class LoopbackError(OSError):
    """Error if this machine cannot connect to itself at 127.0.0.1. `remedy` says what to do."""

    def __init__(self, reason: str, cause: str, remedy: str) -> None:
        super().__init__(f"this machine cannot connect to itself at {LOOPBACK} ({reason}): {cause}. {remedy}")
        self.remedy = remedy


def interface_address(interfaces: str) -> str:
    """Return the IPv4 (else IPv6) address of the first network interface in a comma-separated list."""
    names = interface_names(interfaces)
    check_interfaces(names)
    name = names[0]
    address = _ipv4_address(name)
    if address is not None:
        return address
    import psutil

    for entry in psutil.net_if_addrs().get(name, ()):
        if entry.family == socket.AF_INET6:
            return str(entry.address).partition("%")[0]
    with_address = [known for _, known in socket.if_nameindex() if _ipv4_address(known)]
    raise ValueError(f"network interface {name!r} has no address; these have one: {', '.join(with_address)}")


def interface_names(interfaces: str) -> list[str]:
    """Return the names in a comma-separated list, as in HOROVOD_GLOO_IFACE and --network-interfaces."""
    return [name.strip() for name in interfaces.split(",") if name.strip()]


def check_interfaces(names: Sequence[str]) -> None:
    """Raise ValueError for an empty list, or for a name that no interface of this machine has.

    The error lists the names of all interfaces.
    """
    known = [name for _, name in socket.if_nameindex()]
    missing = [name for name in names if name.partition(":")[0] not in known]  # eth0:1 is an alias of eth0
    if missing or not names:
        what = shown(missing[0]) if missing else "without a name"
        raise ValueError(
            f"no network interface {what} on this machine (HOROVOD_GLOO_IFACE, --network-interfaces); "
            f"there are: {', '.join(known)}"
        )


def loopback_interface() -> str:
    """Return the interface that has 127.0.0.1."""
    return next((name for _, name in socket.if_nameindex() if _ipv4_address(name) == LOOPBACK), "lo")


def check_loopback() -> None:
    """Connect this machine to itself at 127.0.0.1.

    Raises:
        LoopbackError: The connection is impossible.
        OSError: This process or machine has no memory or file descriptor left for it.
    """
    try:
        with (
            socket.create_server((LOOPBACK, 0)) as listener,
            socket.create_connection(listener.getsockname(), timeout=_CONNECT_LIMIT_S),
        ):
            return
    except OSError as error:
        if error.errno in _SCARCITY:
            raise
        # create_server appends text to strerror, so use the system's own text
        reason = os.strerror(error.errno) if error.errno else str(error)
    raise LoopbackError(reason, *_loopback_cause())


def _loopback_cause() -> tuple[str, str]:
    """Return why 127.0.0.1 cannot be reached, and the remedy."""
    name = "lo"
    flags = _ask_interface(_GET_FLAGS, name)
    if flags is None:
        return "it has no loopback interface", f"Start this where there is an interface named {name}"
    if not struct.unpack_from("h", flags, 16)[0] & _IS_UP:
        return f"its loopback interface {name} is down", f"Bring it up: ip link set {name} up"
    if LOOPBACK not in (_ipv4_address(one) for _, one in socket.if_nameindex()):
        return "no interface has this address", f"Add it: ip address add {LOOPBACK}/8 dev {name}"
    return "a firewall may forbid it", f"Let packets over {name} pass"


def reachable_address() -> str:
    """Return an address at which other hosts may reach this one: from its name, else from an interface."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        found = []
    named = [str(entry[4][0]) for entry in found]
    listed = [*named, *(_ipv4_address(name) for _, name in socket.if_nameindex())]
    return next((address for address in listed if address and not address.startswith("127.")), LOOPBACK)


def address_towards(place: tuple[str, int]) -> str | None:
    """Return this host's address on the route to another host; None if there is no route."""
    try:
        found = socket.getaddrinfo(*place, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, protocol, _, target in found:
        with suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0]).partition("%")[0]
    return None


def _ipv4_address(interface: str) -> str | None:
    answer = _ask_interface(_GET_ADDRESS, interface)
    return socket.inet_ntoa(answer[20:24]) if answer is not None else None


def _ask_interface(question: int, interface: str) -> bytes | None:
    """Return the kernel's answer about an interface, or None if it has none."""
    request = struct.pack("256s", os.fsencode(interface)[:_LONGEST_NAME])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            return fcntl.ioctl(probe.fileno(), question, request)
        except OSError:
            return None
