# SPDX-License-Identifier: Apache-2.0
"""Refuses system calls to this process with EPERM, as containers do; for good, and for its children too."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

_NUMBERS = {
    "x86_64": {"memfd_create": 319, "pidfd_open": 434},
    "aarch64": {"memfd_create": 279, "pidfd_open": 434},
}
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL_WITH = 0x7FFF0000, 0x00050000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def refuse(names: list[str]) -> None:
    numbers = [_NUMBERS[platform.machine()][name] for name in names]
    instructions = [_instruction(_LOAD_WORD, 0)]  # the number of the call is the first word of what a filter sees
    for index, number in enumerate(numbers):
        instructions.append(_instruction(_JUMP_IF_EQUAL, number, if_true=len(numbers) - index))
    instructions += [_instruction(_RETURN, _ALLOW), _instruction(_RETURN, _FAIL_WITH | errno.EPERM)]
    code = ctypes.create_string_buffer(b"".join(instructions))
    library = ctypes.CDLL(None, use_errno=True)
    _prctl(library, _PR_SET_NO_NEW_PRIVS, 1, None)
    _prctl(library, _PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(_Program(len(instructions), ctypes.addressof(code))))


def _instruction(code: int, value: int, if_true: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, 0, value)


def _prctl(library: ctypes.CDLL, option: int, argument: int, pointer: object) -> None:
    if library.prctl(option, ctypes.c_ulong(argument), pointer, ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
