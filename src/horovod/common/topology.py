# SPDX-License-Identifier: Apache-2.0
"""Rank and size of this process, from the launcher, torchrun, Open MPI, PMI or Slurm; else a world of one rank.

The functions depend only on the environment, and on the system's host name.
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
    """Horovod's six numbers (rank, size, and their local and cross-host forms), and the identity of the host.

    `source` names the launcher that gave the numbers.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1
    host: str = "localhost"
    source: str = _NOBODY
    local_given: bool = True  # False: the local numbers are guesses (one rank on each host) until all ranks have met
    # False: the cross-host numbers are guesses (equally many ranks on each host) until all ranks have met.
    cross_given: bool = True

    @property
    def on_one_host(self) -> bool:
        """True if the launcher's numbers show that all ranks are on this host; False if they do not show it."""
        return self.local_given and self.local_size == self.size

    @property
    def is_launched(self) -> bool:
        """True if a launcher or a store has given this process its numbers."""
        return self.source != _NOBODY

    @property
    def by_foreign_launcher(self) -> bool:
        return self.source not in (_OURS, _NOBODY)


@dataclass(frozen=True)
class _Launcher:
    """Variables in which one launcher gives a process its numbers."""

    source: str
    rank: str
    size: str
    local_rank: str
    local_size: str


_LAUNCHERS = (
    _Launcher(_OURS, "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    # Check torchrun before the launchers that may have started it, because its numbers are the valid ones then.
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
    """Return the host's identity, from HOROVOD_HOSTNAME or other variables, else from the system.

    Raise ValueError if it is not a valid name.
    """
    setting = BY_NAME["HOROVOD_HOSTNAME"]
    named = next((name for name in (setting.name, *others) if environ.get(name)), None)
    if named is None:
        return str(parse(setting.given_as("the name of this host"), socket.gethostname()))
    return str(parse(setting.given_as(named), environ[named]))


def rank_variable(source: str) -> str:
    """Return the variable that holds the rank in processes started by this launcher."""
    return next(launcher.rank for launcher in _LAUNCHERS if launcher.source == source)


def discover(environ: Mapping[str, str]) -> Topology:
    """Return this process's numbers. Raise ValueError if the variables contradict each other.

    Numbers that an elastic driver has only planned are ignored.
    """
    environ = place_variables.known(environ)
    host = host_name(environ)
    for launcher in _LAUNCHERS:
        if environ.get(launcher.rank) and environ.get(launcher.size) and _speaks(launcher, environ):
            if launcher.source == "Slurm":  # several of Slurm's nodes may be on one machine
                host = host_name(environ, "SLURMD_NODENAME")
            return _checked(_complete(_read(launcher, environ, host), environ))
    _require_both(environ, "HOROVOD_RANK", "HOROVOD_SIZE")  # neither is set: a world of one rank
    return Topology(host=host)


def _speaks(launcher: _Launcher, environ: Mapping[str, str]) -> bool:
    """Return True if the launcher's variables are valid for this process.

    Other launchers set torchrun's variables too. If a torchrun was started inside our job, our variables belong to the
    process that started it.
    """
    if launcher.source == TORCHRUN:
        return torchrun_variables.is_torchruns(environ)
    return launcher.source != _OURS or not torchrun_variables.inside_our_job(environ)


def elastic_topology(environ: Mapping[str, str], place: Mapping[str, Any]) -> Topology:
    """Return the topology of a worker whose place comes from an elastic driver.

    The environment's numbers are ignored.
    """
    return _checked(Topology(**place, host=host_name(environ), source=_OURS))


def _require_both(environ: Mapping[str, str], one: str, other: str) -> bool:
    """Return True if both variables are set, False if neither is. Raise ValueError if only one of them is set."""
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
    """Add the cross-host numbers: as given, or computed as if all hosts had equally many ranks."""
    if found.source == TORCHRUN:
        return _complete_by_groups(found, environ)
    given = _require_both(environ, "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE")
    if given:
        cross = integer_of("HOROVOD_CROSS_RANK", environ), integer_of("HOROVOD_CROSS_SIZE", environ)
    else:
        cross = found.rank // max(found.local_size, 1), -(-found.size // max(found.local_size, 1))
    return replace(found, cross_rank=cross[0], cross_size=cross[1], cross_given=given)


def _complete_by_groups(found: Topology, environ: Mapping[str, str]) -> Topology:
    """Add the cross-host numbers from torchrun, which numbers its agents. There may be several agents on one host."""
    if environ.get("GROUP_RANK") and environ.get("GROUP_WORLD_SIZE"):
        group, groups = integer_of("GROUP_RANK", environ), integer_of("GROUP_WORLD_SIZE", environ)
        if groups * found.local_size == found.size:
            return replace(found, cross_rank=group, cross_size=groups)
    of_size = max(found.local_size, 1)
    return replace(found, cross_rank=found.rank // of_size, cross_size=-(-found.size // of_size), cross_given=False)


def after_meeting(found: Topology, hosts: Sequence[str], local_ranks: Sequence[int]) -> Topology:
    """Replace guessed numbers, once every rank has reported its host and the local rank that it was given."""
    if not found.local_given:
        local_ranks = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
        found = replace(found, local_rank=local_ranks[found.rank], local_size=hosts.count(found.host))
    if not (found.cross_given and found.local_given):
        column = [host for host, local_rank in zip(hosts, local_ranks, strict=True) if local_rank == found.local_rank]
        found = replace(found, cross_rank=column.index(found.host), cross_size=len(column))
    return found


def engine_core(found: Topology, settings: Settings, environ: Mapping[str, str]) -> int | None:
    """Return the core that HOROVOD_THREAD_AFFINITY gives to this rank's engine thread; None for any core.

    Raise ValueError if the list has no core for this rank.
    """
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
    """Return local rank and size from the variables of horovodrun or torchrun, if either has set them.

    A rank whose number comes from a communicator or a store has no local rank otherwise.
    """
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
    """Return the entry for a node in Slurm's list of tasks for each node, such as `2(x3),1`."""
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
    """Return True if every host has equally many ranks, given the host of each rank."""
    return len(set(Counter(hosts).values())) <= 1


@dataclass(frozen=True)
class Rendezvous:
    """Address of the rendezvous, and the secret that proves that ranks belong to one job."""

    address: str
    port: int
    secret: bytes


def rendezvous(topology: Topology, settings: Settings, environ: Mapping[str, str]) -> Rendezvous:
    """Return the rendezvous of a world of several ranks. Raise ValueError that names the missing setting."""
    address = settings.text("HOROVOD_GLOO_RENDEZVOUS_ADDR")
    port = settings["HOROVOD_GLOO_RENDEZVOUS_PORT"]
    who = f"This is rank {topology.rank} of {topology.size} (from {topology.source})"
    if not address or not isinstance(port, int) or port <= 0:
        raise ValueError(
            f"{who}, but no rendezvous is known. Start the job with horovodrun, or set HOROVOD_GLOO_RENDEZVOUS_ADDR "
            "and HOROVOD_GLOO_RENDEZVOUS_PORT on every rank (with HOROVOD_RENDEZVOUS=self rank 0 serves it there)."
        )
    try:
        address.encode("idna")  # the resolver encodes the name in this way
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
    except ValueError as error:  # binascii.Error, or ValueError for text that is not ASCII
        raise ValueError(f"{SECRET_VARIABLE} is not valid base64: {error}") from None
    if len(secret) < 16:
        raise ValueError(f"{SECRET_VARIABLE} holds {len(secret)} bytes; at least 16 are needed")
    return secret


def integer_of(name: str, environ: Mapping[str, str]) -> int:
    """Return a number that a launcher has set, checked by the rules of our settings."""
    kind = BY_NAME.get(name) or Setting(name, int, None, "Set by the launcher.", minimum=0, maximum=MOST_RANKS)
    value = parse(kind, environ[name])
    assert isinstance(value, int), name
    return value
