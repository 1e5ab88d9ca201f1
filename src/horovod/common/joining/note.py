# SPDX-License-Identifier: Apache-2.0
"""Small file that only this user can read, left by one process for others: an address and a secret.

Owner and mode are checked, and links are not followed. So other users of the machine can neither read a note nor
replace it by their own.
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
    """Return the directory in which processes of one host and user leave files for each other."""
    given = environ.get("XDG_RUNTIME_DIR")
    if given and os.path.isabs(given) and os.access(given, os.R_OK | os.W_OK | os.X_OK):
        return Path(given)
    return Path(tempfile.gettempdir())


def private_directory(base: Path) -> Path:
    """Return this user's own directory in `base`; create it if needed.

    Raise PermissionError if other users have access.
    """
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
    """Write the file atomically. Replace a note that a crashed job may have left."""
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
    """Return the contents; None if there is no file. Raise PermissionError if the file is not this user's alone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(f"{path} is not used, because it is not a file that only this user can access")
        return file.read(_MOST_BYTES)
