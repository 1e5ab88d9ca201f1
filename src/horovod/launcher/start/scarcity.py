# SPDX-License-Identifier: Apache-2.0
"""Warnings about scarce resources of a host: GPUs, cores, threads. The job starts anyway."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from horovod.launcher.options import JobOptions
from horovod.launcher.output.user_output import UserOutput
from horovod.launcher.start.limits import threads_notice
from horovod.launcher.start.worker_environment import shared_gpus_notice, shows_warnings

# A few ranks on a laptop or a small CI machine (4 to 8 on 2 cores) are usual and cause no warning. More ranks per core
# than this are probably a mistake: a digit too many, or the slots of another machine.
RANKS_PER_CORE = 4
_THREAD_SETTINGS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")


def say_what_is_scarce(options: JobOptions, ranks: int, ranks_per_name: int, output: UserOutput) -> None:
    """Print a line for each scarce resource of this machine.

    Args:
        options: The flags, which may disable warnings.
        ranks: Number of ranks on this machine.
        ranks_per_name: Largest number of them under one host name, which have different local ranks.
        output: Where to print.
    """
    if not shows_warnings(options):
        return
    cores = len(os.sched_getaffinity(0))
    for notice in (
        shared_gpus_notice(os.environ, ranks_per_name),
        cores_notice(ranks, cores, "this machine"),
        threads_notice(ranks, threads_each(cores, os.environ)),
    ):
        if notice is not None:
            output.say(notice)


def say_if_cores_of_hosts_are_few(
    options: JobOptions, ranks: Mapping[str, int], facts: Mapping[str, Mapping[str, Any]], output: UserOutput
) -> None:
    """Print one line about the first host that has far more ranks than cores.

    Args:
        options: The flags, which may disable warnings.
        ranks: Number of ranks by host.
        facts: What each host's agent reported; without "cores" their number is unknown.
        output: Where to print.
    """
    found = (cores_notice(ranks[host], told.get("cores"), f"host {host}") for host, told in facts.items())
    notice = next(filter(None, found), None)
    if notice is not None and shows_warnings(options):
        output.say(notice)


def cores_notice(ranks: int, cores: object, where: str) -> str | None:
    """Return a warning if there are far more ranks than cores, otherwise None.

    Return None also if `cores` is not a number.
    """
    if not isinstance(cores, int) or cores < 1 or ranks <= RANKS_PER_CORE * cores:
        return None
    counted = f"{cores} core{'s' * (cores > 1)}"
    return (
        f"warning: {where} has {counted} for {ranks} ranks, so ranks wait for a core: start at most one rank for each "
        f"core ({cores} here; -np, or the slots of the host)"
    )


def threads_each(cores: int, environ: Mapping[str, str]) -> int:
    """Return the number of threads of a worker after `import numpy` and hvd.init().

    These are its own thread, the engine's thread, and NumPy's pool.
    """
    given = next((environ[name] for name in _THREAD_SETTINGS if environ.get(name, "").isdecimal()), None)
    return 1 + (max(1, int(given)) if given is not None else cores)
