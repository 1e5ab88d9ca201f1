# SPDX-License-Identifier: Apache-2.0
"""Short runs of real ranks for `hvd doctor` and `hvd test`, with one transport, a time limit, and no output."""

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

# Choices for users, and the value of HOROVOD_SHARED_MEMORY for each (None keeps the environment's value).
TRANSPORTS: dict[str, str | None] = {"auto": None, "shm": "1", "tcp": "0"}


_BAD_SETTING = re.compile(r"\b(HOROVOD_\w+)=.* is not valid")
# Causes that do not depend on the transport, with the lines of `hvd doctor` that show more about them.
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
    """Error: a trial failed. The text gives the reason, including the workers' stderr."""


@dataclass(frozen=True)
class Trial:
    """Results of every rank, and the description of rank 0's engine."""

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

    Args:
        where: Options that name hosts. Their number of ranks is ignored.

    Raises:
        TrialFailed: A host does not answer, a rank fails, or the time limit is over.
        ValueError: The launcher cannot start such a job.
        OSError: The launcher cannot start such a job.
    """
    from horovod.launcher.run_function import run_own

    stdout, stderr = io.StringIO(), io.StringIO()
    shared_memory = TRANSPORTS[transport]
    if shared_memory is None:
        shared_memory = os.environ.get("HOROVOD_SHARED_MEMORY")
    try:
        with (
            # A trial must not overwrite files that the user's own jobs write.
            env(HOROVOD_SHARED_MEMORY=shared_memory, HOROVOD_TIMELINE=None, HOROVOD_AUTOTUNE_LOG=None),
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
        ):
            answers = run_own(_worker, (work, limit_s), replace(where or JobOptions(), num_proc=ranks))
    except RuntimeError as error:
        raise TrialFailed(str(error)) from None
    return Trial([result for result, _ in answers], answers[0][1])


def advice_on(reason: str) -> str:
    """Return advice on a trial that failed for this reason, or an empty string if the cause is unknown."""
    if found := _BAD_SETTING.search(reason):
        return f"correct or unset {found[1]}"
    return next((advice for pattern, advice in _CAUSES if re.search(pattern, reason)), "")


def _worker(work: Callable[[], T], limit_s: float) -> tuple[T, dict[str, Any]]:
    # On a hang, end this process with the stacks of its threads on stderr.
    faulthandler.dump_traceback_later(limit_s, exit=True)
    import horovod.numpy as hvd
    from horovod.common.context import default_context

    hvd.init()
    result = work()
    engine = json.loads(default_context.world.describe())
    hvd.shutdown()
    faulthandler.cancel_dump_traceback_later()
    return result, engine
