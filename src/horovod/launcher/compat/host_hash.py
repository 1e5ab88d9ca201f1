# SPDX-License-Identifier: Apache-2.0
"""Name of this host or container. Processes that can share memory have equal names."""

from __future__ import annotations

import hashlib
import os
import socket

NAMESPACE_PATH = "/proc/self/ns"


def host_hash(salt: str | None = None) -> str:
    """Return the name of this host or container. Processes with different `salt` get different names."""
    hostname = socket.gethostname()
    parts = [hostname, *_namespaces()]
    if salt is not None:
        parts.append(salt)
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
    return f"{hostname.partition('.')[0]}-{digest[:32]}"


def _namespaces() -> list[str]:
    """Return the kernel's numbers of this process's namespaces, in a stable order."""
    try:
        return [
            f"{name}={os.readlink(os.path.join(NAMESPACE_PATH, name))}" for name in sorted(os.listdir(NAMESPACE_PATH))
        ]
    except OSError:
        return []
