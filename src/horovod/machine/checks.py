# SPDX-License-Identifier: Apache-2.0
"""Machine section of `hvd doctor`: cores, memory, limits, shared memory, and kernel features."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Callable

from horovod.machine import cgroups
from horovod.machine.findings import Finding

MIB = 1024 * 1024
_ENOUGH_FILES = 4096
_ENOUGH_SHARED_MEMORY = 1024 * MIB
_LARGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"


def read(path: str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def processor() -> list[Finding]:
    import psutil

    total, usable = os.cpu_count() or 1, len(os.sched_getaffinity(0))
    advice = "" if usable == total else "this shell is bound to some of the cores (taskset, a batch system)"
    findings = [Finding("cores", f"{usable} usable of {total}", advice), _quota(usable)]
    available, whole = psutil.virtual_memory().available, psutil.virtual_memory().total
    findings.append(Finding("memory", f"{available // MIB} MiB available of {whole // MIB} MiB"))
    limit = cgroups.memory(read)
    findings.append(Finding("cgroup memory limit", "none" if limit is None else f"{limit // MIB} MiB"))
    return findings


def _quota(usable: int) -> Finding:
    quota = cgroups.cores(read)
    if quota is None:
        return Finding("cgroup core limit", "none")
    advice = f"start at most {max(1, int(quota))} workers here, or raise the limit" if quota < usable else ""
    return Finding("cgroup core limit", f"{quota:g}", advice)


def limits() -> list[Finding]:
    return [
        open_files(*resource.getrlimit(resource.RLIMIT_NOFILE)),
        Finding("locked memory", _limit(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], MIB, " MiB")),
        Finding("processes", _limit(resource.getrlimit(resource.RLIMIT_NPROC)[0])),
    ]


def open_files(soft: int, hard: int) -> Finding:
    """Return the finding about the limits of open files; -1 means no limit.

    A user may raise the soft limit up to the hard limit.
    """
    if not 0 <= soft < _ENOUGH_FILES:
        return Finding("open files", _limit(soft))
    if not 0 <= hard < _ENOUGH_FILES:
        return Finding("open files", _limit(soft), f"ulimit -n {_ENOUGH_FILES}")
    return Finding(
        "open files",
        f"{_limit(soft)}, at most {_limit(hard)} (ulimit -Hn)",
        f"allow {_ENOUGH_FILES}: nofile in /etc/security/limits.conf, LimitNOFILE= of a systemd unit, or "
        f"docker run --ulimit nofile={_ENOUGH_FILES}",
    )


def shared_memory() -> list[Finding]:
    return [_shm_folder(), Finding("memfd_create", *_works(_try_memfd, "allow memfd_create in the sandbox's profile"))]


def _shm_folder() -> Finding:
    try:
        room = os.statvfs("/dev/shm")
    except OSError as error:
        return Finding("/dev/shm", f"not there: {error.strerror}", "mount a tmpfs on /dev/shm")
    size, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    advice = "docker run --shm-size=1g, or a larger tmpfs on /dev/shm" if free < _ENOUGH_SHARED_MEMORY else ""
    return Finding("/dev/shm", f"{free // MIB} MiB free of {size // MIB} MiB", advice)


def kernel() -> list[Finding]:
    return [
        Finding("kernel", f"{platform.system()} {platform.release()} on {platform.machine()}"),
        Finding("pidfd_open", *_works(_try_pidfd, "allow pidfd_open: a dead worker is noticed later without it")),
        large_pages(read(_LARGE_PAGES)),
    ]


def large_pages(setting: str | None) -> Finding:
    """Return the finding about huge pages. `setting` is the file's text: all choices, the active one in brackets."""
    if setting is None:
        return Finding("transparent huge pages", "unknown")
    chosen = setting.partition("[")[2].partition("]")[0]
    advice = f"echo madvise > {_LARGE_PAGES} (as root): large tensors are allocated faster" if chosen == "never" else ""
    return Finding("transparent huge pages", chosen, advice)


def _limit(value: int, unit: int = 1, name: str = "") -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value // unit}{name}"


def _works(attempt: Callable[[], int], otherwise: str) -> tuple[str, str]:
    try:
        os.close(attempt())
    except (AttributeError, OSError) as error:
        return f"refused: {error}", otherwise
    return "works", ""


def _try_memfd() -> int:
    return os.memfd_create("hvd-doctor")


def _try_pidfd() -> int:
    return os.pidfd_open(os.getpid())
