# SPDX-License-Identifier: Apache-2.0
"""How many processes a batch system has set aside for this job: what -np means when it is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from horovod.common.settings_table import MOST_RANKS, Setting
from horovod.common.settings_values import parse


@dataclass(frozen=True)
class Allocation:
    """`source` says who gave it, for messages."""

    source: str
    processes: int
    hosts: int


def inside_lsf(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("LSB_JOBID") or environ.get("CSM_ALLOCATION_ID"))


def find_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """None outside a batch job, or if it does not say how many. ValueError for what is not a number."""
    if inside_lsf(environ):
        hosts = environ.get("LSB_MCPU_HOSTS", "").split()  # host slots host slots ...
        counts = [_number("LSB_MCPU_HOSTS", count) for count in hosts[1::2]]
        given = environ.get("LSB_DJOB_NUMPROC")
        processes = _number("LSB_DJOB_NUMPROC", given) if given else sum(counts)
        return Allocation("LSF", processes, max(len(counts), 1)) if processes else None
    given = environ.get("SLURM_NTASKS") if environ.get("SLURM_JOB_ID") else None
    if not given:
        return None
    nodes = environ.get("SLURM_JOB_NUM_NODES") or "1"
    return Allocation("Slurm", _number("SLURM_NTASKS", given), _number("SLURM_JOB_NUM_NODES", nodes))


def default_processes(environ: Mapping[str, str]) -> int | None:
    """-np, if the batch system gives it; None if it must be given. ValueError where its hosts cannot be used yet."""
    found = find_allocation(environ)
    if found is not None and found.hosts > 1:
        raise ValueError(
            f"-np was left out, and {found.source} has set aside {found.processes} processes on {found.hosts} hosts: "
            "starting workers on other machines is not available yet. Pass -np to use this machine alone, or start the "
            "program itself with srun or mpirun."
        )
    return found.processes if found is not None else None


def _number(name: str, text: str) -> int:
    """Of processes or hosts; ValueError if it is not a number."""
    kind = Setting(name, int, None, "Set by the batch system.", minimum=1, maximum=MOST_RANKS)
    return int(parse(kind, text))
