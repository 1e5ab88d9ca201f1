# SPDX-License-Identifier: Apache-2.0
"""Which NCCL there is, without loading one that nobody has asked for if that can be told otherwise."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys

NAME = "libnccl.so.2"
VARIABLE = "HOROVOD_NCCL_LIBRARY"
_IN_WHEELS = os.path.join("nvidia", "nccl", "lib", NAME)
_WHEELS = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")


def version() -> int:
    """As NCCL numbers itself: 22809 is 2.28.9. 0: there is none."""
    if named := os.environ.get(VARIABLE):
        return _version_of(named)
    return _version_of(NAME, os.RTLD_NOLOAD) or _of_wheel() or _of_system()


def bundled() -> str | None:
    """The file that a wheel brings, whether anybody has loaded it or not.

    JAX loads its own when it first needs it, which may be after us, and from where the system does not look.
    """
    files = (os.path.join(folder, _IN_WHEELS) for folder in sys.path)
    return next(filter(os.path.isfile, files), None)


def spoken(number: int) -> str:
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _version_of(file: str, mode: int = 0) -> int:
    try:
        library = ctypes.CDLL(file, mode=mode | os.RTLD_LOCAL | os.RTLD_NOW)
        number = ctypes.c_int()
        failed = library.ncclGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return 0
    return 0 if failed else number.value


def _of_wheel() -> int:
    """PyTorch and JAX bring it as a wheel, and load it when they need it."""
    from importlib import metadata  # late: every rank imports this file, and few ask

    for wheel in _WHEELS:
        try:
            found = re.match(r"(\d+)\.(\d+)\.(\d+)", metadata.version(wheel))
        except metadata.PackageNotFoundError:
            continue
        if found:
            major, minor, patch = (int(part) for part in found.groups())
            return 10000 * major + 100 * minor + patch
    return 0


@functools.cache
def _of_system() -> int:
    return _version_of(NAME)
