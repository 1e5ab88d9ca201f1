# SPDX-License-Identifier: Apache-2.0
"""Where this process stands: rank and size from the launcher, torchrun, Open MPI, PMI or Slurm; else a world of one.

Pure functions of the environment; the host's name is the only thing asked of the system.
"""

from __future__ import annotations

import base64
import re
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from horovod.common import place_variables, torchrun_variables
from horovod.common.settings import BY_NAME, Settings, parse
from horovod.common.settings_table import MOST_RANKS, Setting
from horovod.common.settings_values import shown

SECRET_VARIABLE = "_HOROVOD_SECRET_KEY"
_OURS = "HOROVOD_* variables"
_NOBODY = "no launcher"
TORCHRUN = "torchrun"
_SLURM_PART = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", re.ASCII)


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
    cross_given: bool = True  # False: the same number of ranks on each host is a guess, until all ranks have met

    @property
    def on_one_host(self) -> bool:
        """Whether the launcher says that all ranks are here; False if it says nothing about it."""
        return self.local_given and self.local_size == self.size

    @property
    def is_launched(self) -> bool:
        """Whether anybody has said that there are other ranks."""
        return self.source != _NOBODY

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
    # Before those that may have started it: it says last what is so.
    _Launcher(TORCHRUN, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
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


def host_name(environ: Mapping[str, str], *others: str) -> str:
    """The host's identity, from HOROVOD_HOSTNAME or other variables, else from the system; checked either way."""
    setting = BY_NAME["HOROVOD_HOSTNAME"]
    named = next((name for name in (setting.name, *others) if environ.get(name)), None)
    if named is None:
        return str(parse(setting.given_as("the name of this host"), socket.gethostname()))
    return str(parse(setting.given_as(named), environ[named]))


def rank_variable(source: str) -> str:
    """The variable that holds the rank in processes started by this launcher."""
    return next(launcher.rank for launcher in _LAUNCHERS if launcher.source == source)


def discover(environ: Mapping[str, str]) -> Topology:
    """This process's place in the world. ValueError if the variables contradict each other.

    A place that an elastic driver has only planned is none.
    """
    environ = place_variables.known(environ)
    host = host_name(environ)
    for launcher in _LAUNCHERS:
        if environ.get(launcher.rank) and environ.get(launcher.size) and _speaks(launcher, environ):
            if launcher.source == "Slurm":  # several of its nodes may live on one machine
                host = host_name(environ, "SLURMD_NODENAME")
            return _checked(_complete(_read(launcher, environ, host), environ))
    _require_both(environ, "HOROVOD_RANK", "HOROVOD_SIZE")  # none: a world of one
    return Topology(host=host)


def _speaks(launcher: _Launcher, environ: Mapping[str, str]) -> bool:
    """Others set torchrun's variables, too. Our own are not this process's if torchrun was started inside our job."""
    if launcher.source == TORCHRUN:
        return torchrun_variables.is_torchruns(environ)
    return launcher.source != _OURS or not torchrun_variables.inside_our_job(environ)


def elastic_topology(environ: Mapping[str, str], place: Mapping[str, Any]) -> Topology:
    """That of a worker whose place comes from an elastic driver, whatever the environment says of ranks."""
    return _checked(Topology(**place, host=host_name(environ), source=_OURS))


def _require_both(environ: Mapping[str, str], one: str, other: str) -> bool:
    """Whether both are given; ValueError if only one of them is."""
    given = [name for name in (one, other) if environ.get(name)]
    if len(given) == 1:
        raise ValueError(f"{one} and {other} go together: set both or neither (now only {given[0]} is set)")
    return bool(given)


def _read(launcher: _Launcher, environ: Mapping[str, str], host: str) -> Topology:
    rank = integer_of(launcher.rank, environ)
    size = integer_of(launcher.size, environ)
    has_local = bool(environ.get(launcher.local_rank) and environ.get(launcher.local_size))
    if launcher.source == _OURS:
        _require_both(environ, launcher.local_rank, launcher.local_size)
    if launcher.source == "Slurm" and has_local:
        node = integer_of("SLURM_NODEID", environ) if environ.get("SLURM_NODEID") else 0
        local_size = slurm_tasks_on_node(environ[launcher.local_size], node)
        local_rank = integer_of(launcher.local_rank, environ)
    elif has_local:
        local_rank, local_size = integer_of(launcher.local_rank, environ), integer_of(launcher.local_size, environ)
    else:
        local_rank, local_size = 0, 1
    return Topology(rank, size, local_rank, local_size, host=host, source=launcher.source, local_given=has_local)


def _complete(found: Topology, environ: Mapping[str, str]) -> Topology:
    """Add the position across hosts: as given, or as if all hosts held the same number of ranks."""
    if found.source == TORCHRUN:
        return _complete_by_groups(found, environ)
    given = _require_both(environ, "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE")
    if given:
        cross = integer_of("HOROVOD_CROSS_RANK", environ), integer_of("HOROVOD_CROSS_SIZE", environ)
    else:
        cross = found.rank // max(found.local_size, 1), -(-found.size // max(found.local_size, 1))
    return replace(found, cross_rank=cross[0], cross_size=cross[1], cross_given=given)


def _complete_by_groups(found: Topology, environ: Mapping[str, str]) -> Topology:
    """torchrun counts the torchruns of a job: there may be two on one host."""
    if environ.get("GROUP_RANK") and environ.get("GROUP_WORLD_SIZE"):
        group, groups = integer_of("GROUP_RANK", environ), integer_of("GROUP_WORLD_SIZE", environ)
        if groups * found.local_size == found.size:
            return replace(found, cross_rank=group, cross_size=groups)
    of_size = max(found.local_size, 1)
    return replace(found, cross_rank=found.rank // of_size, cross_size=-(-found.size // of_size), cross_given=False)


def after_meeting(found: Topology, hosts: Sequence[str], local_ranks: Sequence[int]) -> Topology:
    """Replace guesses by what is known once every rank has told its host and the local rank it was given."""
    if not found.local_given:
        local_ranks = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
        found = replace(found, local_rank=local_ranks[found.rank], local_size=hosts.count(found.host))
    if not (found.cross_given and found.local_given):
        column = [host for host, local_rank in zip(hosts, local_ranks, strict=True) if local_rank == found.local_rank]
        found = replace(found, cross_rank=column.index(found.host), cross_size=len(column))
    return found


def engine_core(found: Topology, settings: Settings, environ: Mapping[str, str]) -> int | None:
    """The core that HOROVOD_THREAD_AFFINITY has for this rank's engine thread; None: any. ValueError if it has none."""
    text = settings.text("HOROVOD_THREAD_AFFINITY")
    if text is None:
        return None
    cores = [int(part) for part in text.split(",")]
    if len(cores) == 1:
        return cores[0]
    place = (found.local_rank, found.local_size) if found.local_given else _told_local(environ)
    if place is None:
        raise ValueError(
            f"HOROVOD_THREAD_AFFINITY={shown(text)} has a core for each local rank, but {found.source} does not tell "
            "which rank is which: set HOROVOD_LOCAL_RANK and HOROVOD_LOCAL_SIZE on every rank, or one core for all"
        )
    if len(cores) < max(place[1], place[0] + 1):
        raise ValueError(
            f"HOROVOD_THREAD_AFFINITY={shown(text)} has {len(cores)} cores for {place[1]} ranks on host "
            f"{found.host!r}: give one for each of them, or one for all"
        )
    return cores[place[0]]


def _told_local(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Local rank and size of a rank that knows its number from elsewhere: from horovodrun or torchrun."""
    for rank, size in (("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        if environ.get(rank) and environ.get(size):
            return integer_of(rank, environ), integer_of(size, environ)
    return None


def _checked(found: Topology) -> Topology:
    pairs = (
        ("rank", found.rank, "size", found.size),
        ("local_rank", found.local_rank, "local_size", found.local_size),
        ("cross_rank", found.cross_rank, "cross_size", found.cross_size),
    )
    for name, value, limit_name, limit in pairs:
        if not 0 <= value < limit:
            raise ValueError(f"{name} {value} must be at least 0 and below {limit_name} {limit} (from {found.source})")
    for name, value in (("local_size", found.local_size), ("cross_size", found.cross_size)):
        if value > found.size:
            raise ValueError(f"{name} {value} exceeds size {found.size} (from {found.source})")
    return found


def slurm_tasks_on_node(text: str, node: int) -> int:
    """The entry of node number `node` in Slurm's list of tasks for each node, such as `2(x3),1`."""
    first = 0
    for part in text.split(","):
        found = _SLURM_PART.fullmatch(part.strip())
        if found is None:
            raise ValueError(f"SLURM_STEP_TASKS_PER_NODE={shown(text)} is not a list such as 2(x3),1")
        first += int(found[2] or 1)
        if node < first:
            return int(found[1])
    raise ValueError(f"SLURM_NODEID {node} is not in the list of tasks for each node, {shown(text)}")


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
    try:
        address.encode("idna")  # as whoever looks it up will do
    except UnicodeError as error:
        raise ValueError(
            f"HOROVOD_GLOO_RENDEZVOUS_ADDR={shown(address)} is not the name or address of a host: {error}"
        ) from None
    text = environ.get(SECRET_VARIABLE, "")
    if not text:
        raise ValueError(
            f"{who}, but the job has no secret. Start the job with horovodrun, or set {SECRET_VARIABLE} on every rank "
            "to the same base64 text of at least 16 random bytes (for example from: head -c 32 /dev/urandom | base64)."
        )
    return Rendezvous(address, port, decode_secret(text))


def secret_variable(secret: bytes) -> dict[str, str]:
    """Return the variable that holds the job's secret in the environment of a rank."""
    return {SECRET_VARIABLE: base64.b64encode(secret).decode("ascii")}


def decode_secret(text: str) -> bytes:
    try:
        secret = base64.b64decode(text, validate=True)
    except ValueError as error:  # binascii.Error, and what is not even ASCII
        raise ValueError(f"{SECRET_VARIABLE} is not valid base64: {error}") from None
    if len(secret) < 16:
        raise ValueError(f"{SECRET_VARIABLE} holds {len(secret)} bytes; at least 16 are needed")
    return secret


def integer_of(name: str, environ: Mapping[str, str]) -> int:
    """A number that a launcher gave, under the rules of the settings that are ours."""
    kind = BY_NAME.get(name) or Setting(name, int, None, "Set by the launcher.", minimum=0, maximum=MOST_RANKS)
    value = parse(kind, environ[name])
    assert isinstance(value, int), name
    return value
