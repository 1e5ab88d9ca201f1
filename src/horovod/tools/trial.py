# SPDX-License-Identifier: Apache-2.0
"""Short runs of real ranks, here or on hosts, for `hvd doctor` and `hvd test`: one transport, one limit, no output."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from horovod.common.util import env
from horovod.launcher.options import JobOptions

T = TypeVar("T")

# What a user may ask for, and the value of HOROVOD_SHARED_MEMORY that gives it (None: as the environment says).
TRANSPORTS: dict[str, str | None] = {"auto": None, "shm": "1", "tcp": "0"}


_BAD_SETTING = re.compile(r"\b(HOROVOD_\w+)=.* is not valid")
# Causes that have nothing to do with a transport, and the lines of `hvd doctor` that show more about them.
_CAUSES = (
    (r"[Oo]pen files", "two ranks need more open files than allowed: see open files above"),
    (
        r"ulimit -u|too many for this machine|can't start new thread|Resource temporarily unavailable",
        "this user or this machine may run more processes: see processes above, and the limits of the container",
    ),
    (
        r"MemoryError|Cannot allocate memory|killed by signal 9\b",
        "two ranks need more memory than there is: see memory above",
    ),
    (r"ModuleNotFoundError|ImportError", "install what is missing for the Python that runs this command"),
)


class TrialFailed(Exception):  # noqa: N818 - says what happened
    """The text says why, the workers' stderr included."""


@dataclass(frozen=True)
class Trial:
    """What every rank returned, and how rank 0's engine describes itself."""

    results: list[Any]
    engine: dict[str, Any]

    @property
    def transport(self) -> str:
        by_memory, by_socket = self.engine["peers_by_shared_memory"], self.engine["peers_by_socket"]
        if by_memory and by_socket:
            return "shared memory and TCP"
        if by_memory or by_socket:
            return "shared memory" if by_memory else "TCP"
        return "none (one rank)"


def run(work: Callable[[], T], ranks: int, transport: str, limit_s: float, where: JobOptions | None = None) -> Trial:
    """Call `work` on every rank after hvd.init().

    TrialFailed if a host does not answer, a rank fails or the limit passes. ValueError or OSError if the launcher
    cannot start such a job.

    Args:
        where: Options that name hosts; their number of ranks is not used.
    """
    from horovod.launcher.run_function import run_own

    stdout, stderr = io.StringIO(), io.StringIO()
    shared_memory = TRANSPORTS[transport]
    if shared_memory is None:
        shared_memory = os.environ.get("HOROVOD_SHARED_MEMORY")
    try:
        with (
            # Files that the user's own jobs write must not be overwritten by a trial.
            env(HOROVOD_SHARED_MEMORY=shared_memory, HOROVOD_TIMELINE=None, HOROVOD_AUTOTUNE_LOG=None),
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
        ):
            answers = run_own(_worker, (work, limit_s), replace(where or JobOptions(), num_proc=ranks))
    except RuntimeError as error:
        raise TrialFailed(str(error)) from None
    return Trial([result for result, _ in answers], answers[0][1])


def advice_on(reason: str) -> str:
    """Return what to do about a trial that failed for this reason; an empty text if it names no usual cause."""
    if found := _BAD_SETTING.search(reason):
        return f"correct or unset {found[1]}"
    return next((advice for pattern, advice in _CAUSES if re.search(pattern, reason)), "")


def _worker(work: Callable[[], T], limit_s: float) -> tuple[T, dict[str, Any]]:
    # Ends this process with the stacks of its threads on stderr: a hang then explains itself.
    faulthandler.dump_traceback_later(limit_s, exit=True)
    import horovod.numpy as hvd
    from horovod.common.context import default_context

    hvd.init()
    result = work()
    engine = json.loads(default_context.world.describe())
    hvd.shutdown()
    faulthandler.cancel_dump_traceback_later()
    return result, engine
