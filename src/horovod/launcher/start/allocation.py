# SPDX-License-Identifier: Apache-2.0
"""Hosts that a batch system has set aside for this job: the defaults for -np and -H.

The functions are pure, except that one reads a file that LSF may name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from horovod.common.settings_table import MOST_RANKS, Setting
from horovod.common.settings_values import parse, shown
from horovod.launcher.start.hosts import HostInfo

_RANGES = re.compile(r"([^\[\],]*)\[([0-9,-]+)\]([^,\[\]]*)|([^\[\],]+)")
_REPEATED = re.compile(r"([0-9]{1,7})(?:\(x([0-9]{1,7})\))?")


@dataclass(frozen=True)
class Allocation:
    """Allocation of a batch system.

    `hosts` is empty if only the number of processes is known; they then run on this machine.
    """

    source: str
    processes: int
    hosts: tuple[HostInfo, ...] = ()


def inside_lsf(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("LSB_JOBID") or environ.get("CSM_ALLOCATION_ID"))


def find_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Return the batch job's allocation, or None if there is none or it has no size.

    Raise ValueError if it is invalid.
    """
    return _of_lsf(environ) if inside_lsf(environ) else _of_slurm(environ)


def default_processes(environ: Mapping[str, str]) -> int | None:
    """Return the default for -np that the batch system gives, or None if there is none."""
    found = find_allocation(environ)
    return found.processes if found is not None else None


def _of_lsf(environ: Mapping[str, str]) -> Allocation | None:
    words = environ.get("LSB_MCPU_HOSTS", "").split()  # host slots host slots ...
    hosts = [
        HostInfo(name, _number("LSB_MCPU_HOSTS", count)) for name, count in zip(words[::2], words[1::2], strict=False)
    ] or _of_lsf_file(environ)
    # Some clusters submit jobs to a launch node, which has one slot and is named first. It runs no ranks.
    if environ.get("CSM_ALLOCATION_ID") and len(hosts) > 1 and hosts[0].slots == 1:
        del hosts[0]
    given = environ.get("LSB_DJOB_NUMPROC")
    processes = sum(host.slots for host in hosts) or (_number("LSB_DJOB_NUMPROC", given) if given else 0)
    return Allocation("LSF", processes, tuple(hosts)) if processes else None


def _of_lsf_file(environ: Mapping[str, str]) -> list[HostInfo]:
    """Return the hosts of LSF's file, which has one line per slot. The first of the two files omits a launch node."""
    for name in ("LSB_DJOB_RANKFILE", "LSB_DJOB_HOSTFILE"):
        with suppress(OSError, UnicodeError), open(environ.get(name, ""), encoding="utf-8") as file:
            counts = Counter(line.split()[0] for line in file if line.strip())
            return [HostInfo(host, count) for host, count in counts.items()]
    return []


def _of_slurm(environ: Mapping[str, str]) -> Allocation | None:
    if not environ.get("SLURM_JOB_ID"):
        return None
    names = expand_names(environ.get("SLURM_JOB_NODELIST", ""))
    tasks = _repeated("SLURM_TASKS_PER_NODE", environ.get("SLURM_TASKS_PER_NODE", ""))
    given = environ.get("SLURM_NTASKS")
    processes = _number("SLURM_NTASKS", given) if given else sum(tasks)
    if not processes:
        return None
    if len(names) != len(tasks):
        return Allocation("Slurm", processes)
    return Allocation("Slurm", processes, tuple(map(HostInfo, names, tasks)))


def expand_names(text: str) -> list[str]:
    """Expand Slurm's short form of a list of nodes: n[1-3,05],gpu7."""
    names: list[str] = []
    for before, ranges, after, alone in _RANGES.findall(text):
        if alone:
            names.append(alone)
            continue
        for piece in ranges.split(","):
            first, dash, last = piece.partition("-")
            last = last if dash else first
            if not (first.isdigit() and last.isdigit()) or int(last) - int(first) > MOST_RANKS:
                raise ValueError(f"SLURM_JOB_NODELIST={shown(text)} is not a list of nodes")
            names += [f"{before}{number:0{len(first)}d}{after}" for number in range(int(first), int(last) + 1)]
    return names


def _repeated(name: str, text: str) -> Sequence[int]:
    """Expand Slurm's short form of a list of numbers: 2(x3),1."""
    counts: list[int] = []
    for piece in filter(None, text.split(",")):
        match = _REPEATED.fullmatch(piece)
        if match is None or int(match[2] or 1) > MOST_RANKS:
            raise ValueError(f"{name}={shown(text)} is not a list of numbers of tasks")
        counts += [_number(name, match[1])] * int(match[2] or 1)
    return counts


def _number(name: str, text: str) -> int:
    """Return a number of processes or hosts. Raise ValueError if the text is not one."""
    kind = Setting(name, int, None, "Set by the batch system.", minimum=1, maximum=MOST_RANKS)
    return int(parse(kind, text))
