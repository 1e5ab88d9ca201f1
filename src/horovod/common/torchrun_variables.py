# SPDX-License-Identifier: Apache-2.0
"""torchrun's variables, for libraries that read only these. Without them, Accelerate and others run each process alone.

The launcher sets them, and hvd.init() sets them again. Values that the user has set are kept: the variable MARK lists
the values that this package has set.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping
from errno import EADDRINUSE

from horovod.common import place_variables

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Processes connect to each other by these variables. The other variables select a device of the host, which users may
# know better.
_MEETING = frozenset({"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
MARK = "_HOROVOD_TORCHRUN_VARIABLES"  # NAME=value for each variable that this package has set, separated by spaces
_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"
_ALSO_TORCHRUNS = ("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE")
_PORTS = range(20000, 65536)
_EPHEMERAL_PORTS = "/proc/sys/net/ipv4/ip_local_port_range"
_TRIES = 100


def variables(place: Mapping[str, int], address: str, port: int) -> dict[str, str]:
    """Return the variables as torchrun would set them.

    Args:
        place: Values of the first four variables.
        address: Value of MASTER_ADDR.
        port: Value of MASTER_PORT.
    """
    return {**{name: str(place[name]) for name in NAMES[:4]}, "MASTER_ADDR": address, "MASTER_PORT": str(port)}


def settable(wanted: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return those of these variables that the user has not set, and MARK. Return none in a process of torchrun."""
    if is_torchruns(environ):
        return {}
    mine = ours(environ)
    chosen = {name: value for name, value in wanted.items() if name in mine or name not in environ}
    return {**chosen, MARK: " ".join(f"{name}={value}" for name, value in chosen.items())}


def ours(environ: Mapping[str, str]) -> set[str]:
    """Return the names of the variables that still have the values from this package.

    Return an empty set if a torchrun inside the job has set them all.
    """
    if _BY_TORCHRUN in environ:
        return set()
    pairs = [pair.partition("=")[::2] for pair in environ.get(MARK, "").split()]
    return {name for name, value in pairs if name in NAMES and environ.get(name) == value}


def place_is_ours(environ: Mapping[str, str]) -> bool:
    """Return True if this package alone has set the variables by which processes meet.

    Return False if the user, or a torchrun inside the job, has set any of them.
    """
    return ours(environ) >= _MEETING


def is_torchruns(environ: Mapping[str, str]) -> bool:
    """Return True if torchrun has started this process."""
    return _BY_TORCHRUN in environ


def job_size(environ: Mapping[str, str]) -> int:
    """Return how many ranks the launcher started, or 1 if this process belongs to no launcher."""
    environ = place_variables.known(environ)
    by_world_size = is_torchruns(environ) or "WORLD_SIZE" in ours(environ)
    size = environ.get("WORLD_SIZE" if by_world_size else "HOROVOD_SIZE", "1")
    return int(size) if size.isdecimal() else 1


def inside_our_job(environ: Mapping[str, str]) -> bool:
    """Return True if torchrun has started this process, and horovodrun or a process of ours has started torchrun."""
    return is_torchruns(environ) and bool(environ.get(MARK))


def without_outer_place(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a new job, without the rank that this process has in an outer job.

    The outer job may be one of horovodrun or of torchrun.
    """
    dropped = {MARK, *ours(environ)}
    if _BY_TORCHRUN in environ:
        dropped.update(NAMES, _ALSO_TORCHRUNS, (name for name in environ if name.startswith("TORCHELASTIC_")))
    return {name: value for name, value in environ.items() if name not in dropped}


def main_port(environ: Mapping[str, str]) -> int:
    """Return a port of this host for MASTER_PORT: the present one if it is ours and free, else a new one."""
    if "MASTER_PORT" in ours(environ) and _is_free(int(environ["MASTER_PORT"])):
        return int(environ["MASTER_PORT"])
    return free_port()


def free_port() -> int:
    """Return a free port outside the kernel's range for automatic ports, so that it is likely to stay free."""
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
    # If a host's automatic range covers nearly all ports, no port is better than another.
    return range(first, last + 1) if last - first < len(_PORTS) - _TRIES else range(0)


def _is_free(port: int) -> bool:
    """Return True if the port is free on every address, as torch's store needs it."""
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
