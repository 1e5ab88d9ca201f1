# SPDX-License-Identifier: Apache-2.0
"""Interruption of a process's TCP connections: neither end is notified, as when a cable is pulled.

No privileges are needed: the kernel lets this process duplicate the sockets of a descendant. A filter on each socket
drops all incoming packets, including the other end's acknowledgements and its FIN.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PIDFD_GETFD = 438  # the number on every architecture
_SO_ATTACH_FILTER = 26
_RETURN_NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)  # BPF_RET | BPF_K: accept 0 bytes of each packet
_libc = ctypes.CDLL(None, use_errno=True)


def can_cut() -> bool:
    """Return True if the kernel lets this process duplicate descriptors of a process."""
    with _handle(os.getpid()) as handle:
        descriptor = _libc.syscall(_PIDFD_GETFD, handle, handle, 0)
        if descriptor >= 0:
            os.close(descriptor)
    return bool(descriptor >= 0)


def cut_links(pid: int, but_for: int) -> int:
    """Drop all that this process receives through TCP, except from port `but_for`. Return the number of links."""
    code = ctypes.create_string_buffer(_RETURN_NOTHING, len(_RETURN_NOTHING))
    program = struct.pack("HP", 1, ctypes.addressof(code))
    count = 0
    for link in _tcp_links(pid):
        if link.getpeername()[1] != but_for:
            link.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
            count += 1
    return count


def _tcp_links(pid: int) -> Iterator[socket.socket]:
    """Yield the connected TCP sockets; each is closed here when the next one is requested."""
    with suppress(ProcessLookupError, FileNotFoundError), _handle(pid) as handle:
        for number in os.listdir(f"/proc/{pid}/fd"):
            descriptor = _libc.syscall(_PIDFD_GETFD, handle, int(number), 0)
            if descriptor < 0:
                continue  # closed meanwhile
            try:
                link = socket.socket(fileno=descriptor)
            except OSError:
                os.close(descriptor)  # not a socket
                continue
            with link, suppress(OSError):
                if link.family in (socket.AF_INET, socket.AF_INET6) and link.type == socket.SOCK_STREAM:
                    link.getpeername()
                    yield link


@contextmanager
def _handle(pid: int) -> Iterator[int]:
    handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        os.close(handle)
