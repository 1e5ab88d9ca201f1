# SPDX-License-Identifier: Apache-2.0
"""A small file that only this user can read, left by one process for others: a place to meet and a secret.

Everything is checked by owner and mode, and no link is followed: other users of the machine can neither read a note nor
put one of theirs in its place.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_MOST_BYTES = 4096


def runtime_base(environ: Mapping[str, str]) -> Path:
    """Where processes of one host and user leave things for each other."""
    given = environ.get("XDG_RUNTIME_DIR")
    if given and os.path.isabs(given) and os.access(given, os.R_OK | os.W_OK | os.X_OK):
        return Path(given)
    return Path(tempfile.gettempdir())


def private_directory(base: Path) -> Path:
    """This user's own directory in `base`, made if need be. PermissionError if another could look into it."""
    path = base / f".horovod-{os.geteuid()}"
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(
            f"{path} must be a directory of this user alone (owner {os.geteuid()}, mode 0700), but its owner is "
            f"{found.st_uid} and its mode {stat.filemode(found.st_mode)}. Remove it, or set HOROVOD_SHARED_DIR to "
            "another place."
        )
    return path


def write(path: Path, data: bytes) -> None:
    """Put `data` there at once and whole, in place of a note that a job which crashed may have left."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.rename(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def read(path: Path) -> bytes | None:
    """What lies there; None if there is nothing. PermissionError for something that is not this user's own."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(f"{path} does not belong to this user alone, so it is not used")
        return file.read(_MOST_BYTES)
