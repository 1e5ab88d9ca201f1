# SPDX-License-Identifier: Apache-2.0
"""Version and file of NCCL, found if possible without loading a library that the program does not use."""

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
    """Return NCCL's version as NCCL encodes it: 22809 is 2.28.9. Return 0 if there is no NCCL."""
    if named := os.environ.get(VARIABLE):
        return _version_of(named)
    return _version_of(NAME, os.RTLD_NOLOAD) or _of_wheel() or _of_system()


def bundled() -> str | None:
    """Return the file of NCCL in an installed wheel, loaded or not; None if there is none.

    JAX loads NCCL from its wheel when it first needs it. That may be later than the engine, and the system does not
    search the wheel's folder.
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
    """Return the version of NCCL's wheel, which PyTorch and JAX install and load when they need it."""
    from importlib import metadata  # imported late because every rank imports this file, but few call this function

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
