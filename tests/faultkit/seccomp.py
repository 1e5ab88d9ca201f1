# SPDX-License-Identifier: Apache-2.0
"""Permanent refusal of system calls by this process and its children with EPERM, as in containers.

`trap` instead calls a function where a thread is about to make a system call, so that a test reaches any point of
native code.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import signal
import struct
from collections.abc import Callable

_NUMBERS = {
    "x86_64": {"memfd_create": 319, "pidfd_open": 434, "connect": 42, "sendto": 44, "sendmsg": 46, "recvmsg": 47},
    "aarch64": {"memfd_create": 279, "pidfd_open": 434, "connect": 203, "sendto": 206, "sendmsg": 211, "recvmsg": 212},
}
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL_WITH, _TRAP = 0x7FFF0000, 0x00050000, 0x00030000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def refuse(names: list[str]) -> None:
    _filter(names, _FAIL_WITH | errno.EPERM)


def trap(name: str, function: Callable[[], None]) -> None:
    """Call a function, which must not return, instead of this thread's next system call of that name."""

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def handler(_: int) -> None:
        function()

    _kept.append(handler)
    ctypes.CDLL(None).signal(signal.SIGSYS, handler)
    _filter([name], _TRAP)


_kept: list[object] = []  # keeps objects alive to which native code points


def _filter(names: list[str], action: int) -> None:
    numbers = [_NUMBERS[platform.machine()][name] for name in names]
    instructions = [_instruction(_LOAD_WORD, 0)]  # the first word of a filter's input is the number of the system call
    for index, number in enumerate(numbers):
        instructions.append(_instruction(_JUMP_IF_EQUAL, number, if_true=len(numbers) - index))
    instructions += [_instruction(_RETURN, _ALLOW), _instruction(_RETURN, action)]
    code = ctypes.create_string_buffer(b"".join(instructions))
    library = ctypes.CDLL(None, use_errno=True)
    _prctl(library, _PR_SET_NO_NEW_PRIVS, 1, None)
    _prctl(library, _PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(_Program(len(instructions), ctypes.addressof(code))))


def _instruction(code: int, value: int, if_true: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, 0, value)


def _prctl(library: ctypes.CDLL, option: int, argument: int, pointer: object) -> None:
    if library.prctl(option, ctypes.c_ulong(argument), pointer, ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
