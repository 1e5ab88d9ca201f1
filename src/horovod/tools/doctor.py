# SPDX-License-Identifier: Apache-2.0
"""`hvd doctor`: versions, frameworks, cores, limits and shared memory of this machine, with advice where it helps."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Callable
from dataclasses import asdict, dataclass

MIB = 1024 * 1024
_ENOUGH_FILES = 4096
_ENOUGH_SHARED_MEMORY = 1024 * MIB


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, what was found, and what to change (empty: nothing)."""

    name: str
    value: str
    advice: str = ""


Section = tuple[str, list[Finding]]


def examine() -> list[Section]:
    return [
        ("Versions", versions()),
        ("Frameworks", frameworks()),
        ("Processor and memory", processor()),
        ("Limits", limits()),
        ("Shared memory", shared_memory()),
    ]


def versions() -> list[Finding]:
    import horovod

    return [
        Finding("khorovod", horovod.__version__),
        Finding("Python", platform.python_version()),
        Finding("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
    ]


def frameworks() -> list[Finding]:
    from horovod.runner import check_build

    return [
        Finding(found.name, "works" if found.available else "not available", "" if found.available else found.reason)
        for found in check_build.frameworks()
    ]


def processor() -> list[Finding]:
    cores = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0))
    quota = cgroup_cores(_read)
    findings = [Finding("cores", str(cores))]
    advice = "" if usable == cores else "this process may not use all cores (affinity)"
    findings.append(Finding("usable cores", str(usable), advice))
    if quota is not None:
        advice = f"use at most {max(1, int(quota))} workers here" if quota < usable else ""
        findings.append(Finding("cgroup limit on cores", f"{quota:g}", advice))
    memory = cgroup_memory(_read)
    if memory is not None:
        findings.append(Finding("cgroup limit on memory", f"{memory // MIB} MiB"))
    return findings


def limits() -> list[Finding]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    few = 0 <= files < _ENOUGH_FILES
    return [
        Finding("open files", _limit(files), f"ulimit -n {_ENOUGH_FILES}" if few else ""),
        Finding("processes", _limit(processes)),
        Finding("memfd_create", *_works(_try_memfd, "shared memory falls back to files")),
        Finding("pidfd_open", *_works(_try_pidfd, "the death of a process is noticed by polling")),
    ]


def shared_memory() -> list[Finding]:
    try:
        room = os.statvfs("/dev/shm")
    except OSError as error:
        return [Finding("/dev/shm", f"not there: {error.strerror}", "mount a tmpfs there, or sockets will be used")]
    size, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    advice = "docker run --shm-size=1g, or a larger tmpfs" if free < _ENOUGH_SHARED_MEMORY else ""
    return [Finding("/dev/shm", f"{free // MIB} MiB free of {size // MIB} MiB", advice)]


def cgroup_cores(read: Callable[[str], str | None]) -> float | None:
    """The quota in cores, None if there is none. Version 2 of cgroups first, then version 1."""
    text = read("/sys/fs/cgroup/cpu.max")
    if text is not None:
        quota, _, period = text.partition(" ")
        return None if quota == "max" else int(quota) / int(period or 100_000)
    quota_text = read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    period_text = read("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if quota_text is None or period_text is None or int(quota_text) <= 0:
        return None
    return int(quota_text) / int(period_text)


def cgroup_memory(read: Callable[[str], str | None]) -> int | None:
    text = read("/sys/fs/cgroup/memory.max") or read("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    # Version 1 says "no limit" with a number close to 2^63.
    if text is None or text == "max" or int(text) >= 1 << 60:
        return None
    return int(text)


def as_text(sections: list[Section]) -> str:
    width = max(len(finding.name) for _, findings in sections for finding in findings)
    lines: list[str] = []
    for title, findings in sections:
        lines += [title] if not lines else ["", title]
        for finding in findings:
            advice = f"  -> {finding.advice}" if finding.advice else ""
            lines.append(f"  {finding.name:{width}}  {finding.value}{advice}")
    return "\n".join(lines)


def as_json(sections: list[Section]) -> str:
    import json

    return json.dumps({title: [asdict(finding) for finding in findings] for title, findings in sections}, indent=2)


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


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
