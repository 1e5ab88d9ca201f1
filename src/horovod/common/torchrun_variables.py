# SPDX-License-Identifier: Apache-2.0
"""The variables in which torchrun tells a process its place, for libraries that look for them: Accelerate and others
believe themselves alone without.

The launcher sets them, and hvd.init() again. What the user has set stays: a variable of ours lists what we set.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping
from errno import EADDRINUSE

from horovod.common import place_variables

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# By these processes meet. The others say which of its host's devices a process takes: users may know better.
_MEETING = frozenset({"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
MARK = "_HOROVOD_TORCHRUN_VARIABLES"  # NAME=value for each that is ours, separated by spaces
_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"
_ALSO_TORCHRUNS = ("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE")
_PORTS = range(20000, 65536)
_EPHEMERAL_PORTS = "/proc/sys/net/ipv4/ip_local_port_range"
_TRIES = 100


def variables(place: Mapping[str, int], address: str, port: int) -> dict[str, str]:
    """What torchrun would set. `place`: the first four."""
    return {**{name: str(place[name]) for name in NAMES[:4]}, "MASTER_ADDR": address, "MASTER_PORT": str(port)}


def settable(wanted: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Of these variables those that the user has not set, and the list of them; none in a process of torchrun."""
    if is_torchruns(environ):
        return {}
    mine = ours(environ)
    chosen = {name: value for name, value in wanted.items() if name in mine or name not in environ}
    return {**chosen, MARK: " ".join(f"{name}={value}" for name, value in chosen.items())}


def ours(environ: Mapping[str, str]) -> set[str]:
    """The names of those that are as we have set them, unless a torchrun inside the job has set them all."""
    if _BY_TORCHRUN in environ:
        return set()
    pairs = [pair.partition("=")[::2] for pair in environ.get(MARK, "").split()]
    return {name for name, value in pairs if name in NAMES and environ.get(name) == value}


def place_is_ours(environ: Mapping[str, str]) -> bool:
    """Whether this process has its place among all from us alone: neither from the user nor from a torchrun inside the
    job.
    """
    return ours(environ) >= _MEETING


def is_torchruns(environ: Mapping[str, str]) -> bool:
    """Whether torchrun has started this process."""
    return _BY_TORCHRUN in environ


def job_size(environ: Mapping[str, str]) -> int:
    """Return how many ranks the launcher started, or 1 if this process belongs to no launcher."""
    environ = place_variables.known(environ)
    by_world_size = is_torchruns(environ) or "WORLD_SIZE" in ours(environ)
    size = environ.get("WORLD_SIZE" if by_world_size else "HOROVOD_SIZE", "1")
    return int(size) if size.isdecimal() else 1


def inside_our_job(environ: Mapping[str, str]) -> bool:
    """Whether that torchrun was itself started by horovodrun or by a process that had called hvd.init()."""
    return is_torchruns(environ) and bool(environ.get(MARK))


def without_outer_place(environ: Mapping[str, str]) -> dict[str, str]:
    """For a job inside a worker of another horovodrun or of torchrun: the worker's own place is not the new ranks'."""
    dropped = {MARK, *ours(environ)}
    if _BY_TORCHRUN in environ:
        dropped.update(NAMES, _ALSO_TORCHRUNS, (name for name in environ if name.startswith("TORCHELASTIC_")))
    return {name: value for name, value in environ.items() if name not in dropped}


def main_port(environ: Mapping[str, str]) -> int:
    """A port of this host for MASTER_PORT: the present one if it is ours and nobody listens there, else a new one."""
    if "MASTER_PORT" in ours(environ) and _is_free(int(environ["MASTER_PORT"])):
        return int(environ["MASTER_PORT"])
    return free_port()


def free_port() -> int:
    """A port that is free, and that the kernel gives nobody who asks for any port: it stays free for a while."""
    ephemeral = _ephemeral_ports()
    for _ in range(_TRIES):
        port = random.choice(_PORTS)
        if port not in ephemeral and _is_free(port):
            return port
    with socket.socket() as any_socket:
        any_socket.bind(("", 0))
        return int(any_socket.getsockname()[1])


def _ephemeral_ports() -> range:
    try:
        with open(_EPHEMERAL_PORTS, encoding="ascii") as file:
            first, last = map(int, file.read().split())
    except (OSError, ValueError):
        return range(32768, 61000)
    # A host may have opened all ports to the kernel: then none is better than another.
    return range(first, last + 1) if last - first < len(_PORTS) - _TRIES else range(0)


def _is_free(port: int) -> bool:
    """On every address, as torch's store wants it."""
    for family, address in ((socket.AF_INET, ""), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family) as tried:
                if family == socket.AF_INET6:
                    tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                tried.bind((address, port))
        except OSError as error:
            if error.errno == EADDRINUSE or family == socket.AF_INET:
                return False
    return True
