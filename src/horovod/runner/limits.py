# SPDX-License-Identifier: Apache-2.0
"""How many workers a job may have: what the protocol, this machine and this user allow. Asked before any starts."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from horovod.common.settings_table import MOST_RANKS

# The launcher's own files, and for each worker two pipes, a connection to the rendezvous, and maybe two files.
_OWN_DESCRIPTORS = 64
_DESCRIPTORS_EACH = 3


def check_number(number: int, what: str) -> None:
    """ValueError for a number of processes or slots that no job has."""
    if not 1 <= number <= MOST_RANKS:
        raise ValueError(f"{what} must be between 1 and {MOST_RANKS}, not {number}")


def check_local_processes(number: int) -> None:
    """ValueError if this machine cannot run this many processes, or this user may not."""
    for bound, reason in _process_bounds():
        if number > bound:
            raise ValueError(f"{number} processes are too many for this machine: {reason}")


@contextmanager
def enough_descriptors(workers: int, files: bool) -> Iterator[None]:
    """Room for all pipes and connections, as far as this user may have it; ValueError if that is not enough."""
    needed = _OWN_DESCRIPTORS + len(os.listdir("/proc/self/fd")) + workers * (_DESCRIPTORS_EACH + 2 * files)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        yield
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ValueError(
            f"{workers} workers need {needed} open files, and this user may have {hard} (ulimit -Hn): "
            "start fewer, or raise the limit"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _process_bounds() -> Iterator[tuple[int, str]]:
    allowed, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if allowed != resource.RLIM_INFINITY and os.geteuid() != 0:  # the kernel asks nothing of root
        yield allowed, f"this user may run {allowed} (ulimit -u)"
    for name in ("pid_max", "threads-max"):
        try:
            with open(f"/proc/sys/kernel/{name}", encoding="ascii") as file:
                bound = int(file.read())
        except (OSError, ValueError):
            continue
        yield bound, f"kernel.{name} is {bound}"
