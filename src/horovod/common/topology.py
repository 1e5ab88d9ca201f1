# SPDX-License-Identifier: Apache-2.0
"""Where this process stands: rank and size from the launcher, Open MPI, PMI or Slurm; else a world of one.

Pure functions of the environment; the host's name is the only thing asked of the system.
"""

from __future__ import annotations

import base64
import binascii
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from horovod.common.settings import Settings

SECRET_VARIABLE = "_HOROVOD_SECRET_KEY"
_OURS = "HOROVOD_* variables"
_NOBODY = "no launcher"


@dataclass(frozen=True)
class Topology:
    """The six numbers of Horovod, and the identity of the host. `source` says who gave them."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1
    host: str = "localhost"
    source: str = _NOBODY
    local_given: bool = True  # False: one rank for each host is a guess, until all ranks have met
    cross_given: bool = True  # False: equally many ranks on each host is a guess, until all ranks have met

    @property
    def on_one_host(self) -> bool:
        """Whether the launcher says that all ranks are here; False if it says nothing about it."""
        return self.local_given and self.local_size == self.size

    @property
    def by_foreign_launcher(self) -> bool:
        return self.source not in (_OURS, _NOBODY)


@dataclass(frozen=True)
class _Launcher:
    """The variables in which one launcher tells a process its place."""

    source: str
    rank: str
    size: str
    local_rank: str
    local_size: str


_LAUNCHERS = (
    _Launcher(_OURS, "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    _Launcher(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Launcher("PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    _Launcher("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)


def rank_variable(source: str) -> str:
    """The variable that holds the rank in processes started by this launcher."""
    return next(launcher.rank for launcher in _LAUNCHERS if launcher.source == source)


def discover(environ: Mapping[str, str]) -> Topology:
    """This process's place in the world. ValueError if the variables contradict each other."""
    host = environ.get("HOROVOD_HOSTNAME") or socket.gethostname()
    for launcher in _LAUNCHERS:
        if environ.get(launcher.rank) and environ.get(launcher.size):
            if launcher.source == "Slurm":  # several of its nodes may live on one machine
                host = environ.get("HOROVOD_HOSTNAME") or environ.get("SLURMD_NODENAME") or host
            return _checked(_complete(_read(launcher, environ, host), environ))
    if environ.get("HOROVOD_RANK") or environ.get("HOROVOD_SIZE"):
        raise ValueError("HOROVOD_RANK and HOROVOD_SIZE go together: set both, or none for a world of one.")
    return Topology(host=host)


def _read(launcher: _Launcher, environ: Mapping[str, str], host: str) -> Topology:
    rank = _integer(environ, launcher.rank)
    size = _integer(environ, launcher.size)
    has_local = bool(environ.get(launcher.local_rank) and environ.get(launcher.local_size))
    if launcher.source == "Slurm" and has_local:
        local_size = slurm_tasks_on_node(environ[launcher.local_size], int(environ.get("SLURM_NODEID", "0")))
        local_rank = _integer(environ, launcher.local_rank)
    elif has_local:
        local_rank, local_size = _integer(environ, launcher.local_rank), _integer(environ, launcher.local_size)
    else:
        local_rank, local_size = 0, 1
    return Topology(rank, size, local_rank, local_size, host=host, source=launcher.source, local_given=has_local)


def _complete(found: Topology, environ: Mapping[str, str]) -> Topology:
    """Add the position across hosts: given, or as if all hosts held equally many ranks."""
    given = bool(environ.get("HOROVOD_CROSS_RANK") and environ.get("HOROVOD_CROSS_SIZE"))
    if given:
        cross = _integer(environ, "HOROVOD_CROSS_RANK"), _integer(environ, "HOROVOD_CROSS_SIZE")
    else:
        cross = found.rank // max(found.local_size, 1), -(-found.size // max(found.local_size, 1))
    return replace(found, cross_rank=cross[0], cross_size=cross[1], cross_given=given)


def after_meeting(found: Topology, hosts: Sequence[str], local_ranks: Sequence[int]) -> Topology:
    """Replace guesses by what is known once every rank has told its host and the local rank it was given."""
    if not found.local_given:
        local_ranks = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
        found = replace(found, local_rank=local_ranks[found.rank], local_size=hosts.count(found.host))
    if not (found.cross_given and found.local_given):
        column = [host for host, local_rank in zip(hosts, local_ranks, strict=True) if local_rank == found.local_rank]
        found = replace(found, cross_rank=column.index(found.host), cross_size=len(column))
    return found


def _checked(found: Topology) -> Topology:
    pairs = (
        ("rank", found.rank, "size", found.size),
        ("local_rank", found.local_rank, "local_size", found.local_size),
        ("cross_rank", found.cross_rank, "cross_size", found.cross_size),
    )
    for name, value, limit_name, limit in pairs:
        if not 0 <= value < limit:
            raise ValueError(f"{name} {value} must be at least 0 and below {limit_name} {limit} (from {found.source})")
    if found.local_size > found.size:
        raise ValueError(f"local_size {found.local_size} exceeds size {found.size} (from {found.source})")
    return found


def slurm_tasks_on_node(text: str, node: int) -> int:
    """The entry of node number `node` in Slurm's list of tasks for each node, such as `2(x3),1`."""
    counts: list[int] = []
    for part in text.split(","):
        count, _, times = part.partition("(x")
        counts += [int(count)] * (int(times.rstrip(")")) if times else 1)
    if not 0 <= node < len(counts):
        raise ValueError(f"SLURM_NODEID {node} is not in the list of tasks for each node, {text!r}")
    return counts[node]


def is_homogeneous(hosts: Sequence[str]) -> bool:
    """Whether every host holds the same number of ranks, given the host of each rank."""
    return len(set(Counter(hosts).values())) <= 1


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks meet, and what proves that they belong together."""

    address: str
    port: int
    secret: bytes


def rendezvous(topology: Topology, settings: Settings, environ: Mapping[str, str]) -> Rendezvous:
    """The meeting point of a world of several ranks; ValueError that says what to set if something is missing."""
    address = settings.text("HOROVOD_GLOO_RENDEZVOUS_ADDR")
    port = settings["HOROVOD_GLOO_RENDEZVOUS_PORT"]
    who = f"This is rank {topology.rank} of {topology.size} (from {topology.source})"
    if not address or not isinstance(port, int) or port <= 0:
        raise ValueError(
            f"{who}, but no rendezvous is known. Start the job with horovodrun, or set HOROVOD_GLOO_RENDEZVOUS_ADDR "
            "and HOROVOD_GLOO_RENDEZVOUS_PORT on every rank (with HOROVOD_RENDEZVOUS=self rank 0 serves it there)."
        )
    text = environ.get(SECRET_VARIABLE, "")
    if not text:
        raise ValueError(
            f"{who}, but the job has no secret. Start the job with horovodrun, or set {SECRET_VARIABLE} on every rank "
            "to the same base64 text of at least 16 random bytes (for example from: head -c 32 /dev/urandom | base64)."
        )
    return Rendezvous(address, port, decode_secret(text))


def decode_secret(text: str) -> bytes:
    try:
        secret = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{SECRET_VARIABLE} is not valid base64: {error}") from None
    if len(secret) < 16:
        raise ValueError(f"{SECRET_VARIABLE} holds {len(secret)} bytes; at least 16 are needed")
    return secret


def _integer(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise ValueError(f"{name}={environ[name]!r} is not an integer") from None
