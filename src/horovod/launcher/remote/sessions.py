# SPDX-License-Identifier: Apache-2.0
"""Processes that start agents, each of which leads a session. Ending one ends every process of its session.

Such a process may be a script around ssh, so that ssh is its child. A leader's pid identifies its session only until
the leader is reaped, so this module does not reap any.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress

from horovod.launcher.start.guardian import descendants, relations

_KILL_LIMIT_S = 2.0  # a process that sleeps in the kernel may outlive SIGKILL
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.0005, 0.05


def kill_group(leader: int) -> None:
    """Send SIGKILL to the process group of a leader."""
    with suppress(OSError):
        os.killpg(leader, signal.SIGKILL)


def kill_sessions(leaders: Collection[int], with_descendants: Collection[int] = ()) -> None:
    """Send SIGKILL to every process of these sessions until all have ended, for at most two seconds.

    Args:
        leaders: The leaders of the sessions.
        with_descendants: The leaders whose descendants in other sessions must end too.
    """
    deadline = time.monotonic() + _KILL_LIMIT_S
    while found := {pid for pid, _, session in relations() if session in leaders} | descendants(*with_descendants):
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() >= deadline:
            return
        time.sleep(_MIN_PAUSE_S)


def exit_code_of(leader: int, limit_s: float = 0.0) -> int | None:
    """Return the exit code of a child, or minus the signal that killed it; None if it still runs after `limit_s`.

    If the child was already reaped, its code is unknown, and 0 is returned, as subprocess does. This happens if SIGCHLD
    is ignored or if a program waits for all its children.
    """
    deadline, pause_s = time.monotonic() + limit_s, _MIN_PAUSE_S
    try:
        while (ended := os.waitid(os.P_PID, leader, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(pause_s, left))
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
    except ChildProcessError:
        return 0
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
