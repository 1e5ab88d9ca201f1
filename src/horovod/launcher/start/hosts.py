# SPDX-License-Identifier: Apache-2.0
"""Hosts and slots: parse -H and --hostfile, assign ranks, and tell which hosts are this machine."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from horovod.common.settings import value_of
from horovod.common.settings_table import MOST_RANKS
from horovod.common.settings_values import shown
from horovod.launcher.options import JobOptions
from horovod.launcher.start.limits import check_number

SIMULATE_VARIABLE = "HOROVOD_SIMULATE_HOSTS"

_HOST = r"([\w.-]{1,253})"
_HOST_AND_SLOTS = re.compile(_HOST + r":([0-9]{1,18})", re.ASCII)
_HOSTFILE_LINE = re.compile(_HOST + r"(?:\s+slots\s*=\s*([0-9]{1,18}))?", re.ASCII)
_LARGEST_FILE = 16 << 20  # bytes
_REMEDIES: dict[type[OSError], str] = {
    FileNotFoundError: "correct the path or write the file, one line 'host slots=n' for each host",
    IsADirectoryError: "name a file of lines 'host slots=n'",
    PermissionError: "make the file readable for this user",
}


@dataclass(frozen=True)
class HostInfo:
    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        match = _HOST_AND_SLOTS.fullmatch(host_string.strip())
        if match is None or not 1 <= int(match[2]) <= MOST_RANKS:
            raise ValueError(
                f"Invalid host input {shown(host_string)}: write host:slots with 1 to {MOST_RANKS} slots, for example "
                "worker-0:2,worker-1:2"
            )
        return HostInfo(match[1], int(match[2]))


@dataclass(frozen=True)
class SlotInfo:
    """Place of one worker: its host, and its ranks and sizes."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Parse `h1:2,h2:4` into hosts in the given order. The slots of a host that is named twice are added up."""
    return _merged(HostInfo.from_string(entry) for entry in hosts_string.split(","))


def parse_host_file(path: str) -> list[HostInfo]:
    """Parse a file of lines `host slots=n` (default: one slot); `#` starts a comment.

    Raises:
        ValueError: A line is wrong; the text names file and line.
    """
    hosts = []
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(_LARGEST_FILE)
    if len(text) == _LARGEST_FILE:
        raise ValueError(f"{path}: this is not a hostfile: it has more than {_LARGEST_FILE} characters")
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = _HOSTFILE_LINE.fullmatch(text)
        if match is None or not 1 <= int(match[2] or 1) <= MOST_RANKS:
            raise ValueError(
                f"{path}:{number}: expected 'host slots=n' with n from 1 to {MOST_RANKS}, found {shown(text)}"
            )
        hosts.append(HostInfo(match[1], int(match[2] or 1)))
    if not hosts:
        raise ValueError(f"{path}: the hostfile names no host")
    return _merged(hosts)


def _hosts_of_flag(path: str) -> list[HostInfo]:
    """Return the hosts of --hostfile. Raise OSError with the flag, the path and a remedy."""
    try:
        return parse_host_file(path)
    except OSError as error:
        remedy = next((text for kind, text in _REMEDIES.items() if isinstance(error, kind)), "check the path")
        raise type(error)(
            f"cannot read the hostfile {shown(path)} (--hostfile): {error.strerror or error}; {remedy}, or name the "
            "hosts with -H host:slots,..."
        ) from error


def parse_host_files(filename: str) -> str:
    """Return the hosts of a hostfile in the notation of -H."""
    return ",".join(f"{host.hostname}:{host.slots}" for host in parse_host_file(filename))


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    parsed = parse_hosts(hosts)
    return [host.hostname for host in parsed], {host.hostname: host.slots for host in parsed}


def get_host_assignments(hosts: list[HostInfo], min_num_proc: int, max_num_proc: int | None = None) -> list[SlotInfo]:
    """Assign ranks in the order of hosts and slots: at least `min_num_proc`, at most `max_num_proc`."""
    _require_slots(hosts, min_num_proc)
    wanted = max_num_proc if max_num_proc is not None else min_num_proc
    used: list[HostInfo] = []
    left = wanted
    for host in hosts:
        if left > 0:
            used.append(HostInfo(host.hostname, min(host.slots, left)))
            left -= used[-1].slots
    size = sum(host.slots for host in used)
    slots: list[SlotInfo] = []
    for host in used:
        for local_rank in range(host.slots):
            peers = [other.hostname for other in used if other.slots > local_rank]
            slots.append(
                SlotInfo(
                    hostname=host.hostname,
                    rank=len(slots),
                    local_rank=local_rank,
                    cross_rank=peers.index(host.hostname),
                    size=size,
                    local_size=host.slots,
                    cross_size=len(peers),
                )
            )
    return slots


def plan_hosts(options: JobOptions, set_aside: Sequence[HostInfo] = ()) -> list[HostInfo]:
    """Return the hosts that flags name, or those that a batch system has set aside for this job.

    Without either, or if one host with too few slots is set aside, use this machine with as many slots as processes.
    """
    if options.hosts is not None and options.hostfile is not None:
        raise ValueError("Argument hosts and hostfile only allow one provided.")
    if options.hosts is not None:
        hosts = parse_hosts(options.hosts)
    elif options.hostfile is not None:
        hosts = _hosts_of_flag(options.hostfile)
    elif len(set_aside) > 1 or (set_aside and set_aside[0].slots >= options.num_proc):
        hosts = list(set_aside)
    else:
        hosts = [HostInfo("localhost", options.num_proc)]
    check_number(options.num_proc, "-np (num_proc)")
    _require_slots(hosts, options.num_proc)
    return hosts


def named_slots(hosts: str | None, hostfile: str | None) -> int | None:
    """Return the number of slots on the named hosts, which is the default for -np; None if no hosts are named."""
    if hosts is not None:
        return sum(host.slots for host in parse_hosts(hosts))
    if hostfile is not None:
        return sum(host.slots for host in _hosts_of_flag(hostfile))
    return None


def _require_slots(hosts: list[HostInfo], processes: int) -> None:
    available = sum(host.slots for host in hosts)
    if available < processes:
        listed = ",".join(f"{host.hostname}:{host.slots}" for host in hosts)[:500]
        raise ValueError(
            f"Requested more processes ({processes}) than there are available slots ({available}): {listed}"
        )


def is_local(hostname: str) -> bool:
    """Return True if the name belongs to this machine. With HOROVOD_SIMULATE_HOSTS=1 every name does."""
    if value_of(SIMULATE_VARIABLE, os.environ):
        return True
    if hostname in ("localhost", "127.0.0.1", socket.gethostname()):
        return True
    try:
        found = socket.getaddrinfo(hostname, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    # Only an address of this machine can be bound. Trying that is cheaper and safer than listing its interfaces.
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def _merged(hosts: Iterable[HostInfo]) -> list[HostInfo]:
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.hostname] = slots.get(host.hostname, 0) + host.slots
    return [HostInfo(hostname, count) for hostname, count in slots.items()]
