# SPDX-License-Identifier: Apache-2.0
"""Limits that a container or a batch system set for this process through control groups, version 1 or 2.

A group's limit applies to all groups inside it, so the tightest limit among a group and its ancestors counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

Read = Callable[[str], "str | None"]  # returns the contents of a file, or None if it cannot be read
_ROOT = "/sys/fs/cgroup"


def cores(read: Read) -> float | None:
    """Return the quota in cores, or None if there is none."""
    quotas = [_quota_2(text) for text in _files(read, "", "cpu.max")]
    for controller in ("cpu", "cpu,cpuacct"):
        folders = list(_folders(read, controller))
        quotas += [_quota_1(read(f"{at}/cpu.cfs_quota_us"), read(f"{at}/cpu.cfs_period_us")) for at in folders]
    return min((quota for quota in quotas if quota is not None), default=None)


def memory(read: Read) -> int | None:
    """Return the limit in bytes, or None if there is none."""
    texts = [*_files(read, "", "memory.max"), *_files(read, "memory", "memory.limit_in_bytes")]
    # In version 1 a number close to 2^63 means "no limit".
    limits = [int(text) for text in texts if text.isdigit() and int(text) < 1 << 60]
    return min(limits, default=None)


def _quota_2(text: str) -> float | None:
    quota, _, period = text.partition(" ")
    return int(quota) / int(period or 100_000) if quota.isdigit() else None


def _quota_1(quota: str | None, period: str | None) -> float | None:
    if quota is None or period is None or int(quota) <= 0:
        return None
    return int(quota) / int(period)


def _files(read: Read, controller: str, name: str) -> Iterator[str]:
    for folder in _folders(read, controller):
        text = read(f"{folder}/{name}")
        if text is not None:
            yield text


def _folders(read: Read, controller: str) -> Iterator[str]:
    """Yield the folders of this process's group and all its ancestors. A container may see only some of them."""
    base = f"{_ROOT}/{controller}".rstrip("/")
    here = PurePosixPath("/")
    for line in (read("/proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if names == controller if controller else number == "0":
            here = PurePosixPath("/") / path.lstrip("/")
    for group in (here, *here.parents):
        yield f"{base}{group}".rstrip("/")
