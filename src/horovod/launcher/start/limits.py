# SPDX-License-Identifier: Apache-2.0
"""Limits on the number of workers by the protocol, this machine and this user, checked before any worker starts."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from horovod.common.settings_table import MOST_RANKS

# Number of descriptors of the launcher itself. Each worker needs two pipes and a rendezvous connection more; files are
# added below.
_OWN_DESCRIPTORS = 64
_DESCRIPTORS_EACH = 3
_LONGEST_COOLDOWN_S = 3600
_OWN_THREADS = 2  # minimum: the rendezvous, and the thread that reads the workers' output


def check_number(number: int, what: str) -> None:
    """Raise ValueError for a number of processes or slots that no job can have."""
    if not 1 <= number <= MOST_RANKS:
        raise ValueError(f"{what} must be between 1 and {MOST_RANKS}, not {number}")


def check_reset_limit(number: int | None) -> None:
    """Raise ValueError for a negative number of resets. None means no limit."""
    if number is not None and number < 0:
        raise ValueError(
            f"--reset-limit (reset_limit) must be at least 0, not {number}: leave it out to allow any number of resets"
        )


def check_cooldown(bounds: Sequence[float] | None) -> None:
    """Raise ValueError for a range that is not two numbers of seconds in ascending order. None means no cooldown."""
    if bounds is not None and not (len(bounds) == 2 and 1 <= bounds[0] <= bounds[1] <= _LONGEST_COOLDOWN_S):
        raise ValueError(
            "--blacklist-cooldown-range (cooldown_range) takes two numbers of seconds, "
            f"1 <= min <= max <= {_LONGEST_COOLDOWN_S}, not {' '.join(map(str, bounds))}"
        )


def check_local_processes(number: int) -> None:
    """Raise ValueError if this machine or this user cannot run this many processes."""
    if number == 0:  # all ranks are on other hosts
        return
    for bound, reason in _process_bounds():
        if number > bound:
            raise ValueError(f"{number} processes are too many for this machine: {reason}")
    allowed = allowed_tasks()
    if allowed is None:
        return
    used = used_tasks(enough=allowed - number - _OWN_THREADS)
    if used + number + _OWN_THREADS > allowed:
        raise ValueError(
            f"{number} processes are too many for this machine: this user may run {allowed} processes and threads "
            f"(ulimit -u), of which {used} run already, and the launcher starts {_OWN_THREADS} more: "
            "raise the limit, or start fewer"
        )


def threads_notice(number: int, threads_each: int) -> str | None:
    """Return a warning if this user may not run as many threads as Python workers usually start, otherwise None.

    This is no error, because the number of threads that the workers' program starts is unknown.
    """
    allowed = allowed_tasks()
    if allowed is None or number == 0:
        return None
    wanted = number * threads_each + _OWN_THREADS
    used = used_tasks(enough=allowed - wanted)
    if used + wanted <= allowed:
        return None
    return (
        f"warning: this user may run {allowed} processes and threads (ulimit -u), of which {used} run already, but "
        f"{number} ranks with NumPy start about {number * threads_each}: if they fail, raise the limit, set "
        "OMP_NUM_THREADS=1, or start fewer"
    )


def allowed_tasks() -> int | None:
    """Return how many processes and threads this user may run, or None if there is no limit."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    # The kernel does not apply this limit to root.
    return None if allowed == resource.RLIM_INFINITY or os.getuid() == 0 else allowed


def used_tasks(enough: int) -> int:
    """Return the number of processes and threads of this user, or of all users if that is at most `enough`.

    Counting this user's takes milliseconds on a machine with thousands of processes.
    """
    with suppress(OSError, ValueError), open("/proc/loadavg", encoding="ascii") as file:
        of_all_users = int(file.read().split()[3].partition("/")[2])
        if of_all_users <= enough:
            return of_all_users
    return sum(_tasks_of(pid, os.getuid()) for pid in os.listdir("/proc") if pid.isdigit())


def _tasks_of(pid: str, user: int) -> int:
    """Return the number of a process's threads, or 0 if it belongs to another user or has ended."""
    try:
        return len(os.listdir(f"/proc/{pid}/task")) if os.stat(f"/proc/{pid}").st_uid == user else 0
    except OSError:
        return 0


def explain_shortage(error: Exception) -> str:
    """Return the text of an error, with a remedy if the kernel refused a process or thread."""
    if not is_shortage(error) or getattr(error, "host", None) is not None:  # the limits of another host are unknown
        return str(error)
    allowed = allowed_tasks()
    bound = f"this user may run {allowed} (ulimit -u)" if allowed is not None else "see pids.max of the container"
    return f"no room for another process or thread: {bound}. Raise the limit, or end what else runs ({error})"


def is_shortage(error: Exception) -> bool:
    """Return True if the kernel refused this process another process or thread."""
    if isinstance(error, OSError):
        return error.errno == errno.EAGAIN
    return isinstance(error, RuntimeError) and "can't start new thread" in str(error)


@contextmanager
def enough_descriptors(workers: int, files: bool) -> Iterator[None]:
    """Raise the limit of open files as needed while the job runs. Raise ValueError if this user may not."""
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
    allowed = allowed_tasks()
    if allowed is not None:
        yield allowed, f"this user may run {allowed} (ulimit -u)"
    for name in ("pid_max", "threads-max"):
        try:
            with open(f"/proc/sys/kernel/{name}", encoding="ascii") as file:
                bound = int(file.read())
        except (OSError, ValueError):
            continue
        yield bound, f"kernel.{name} is {bound}"
