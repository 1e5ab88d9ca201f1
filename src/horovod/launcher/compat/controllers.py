# SPDX-License-Identifier: Apache-2.0
"""Choice of the controller that starts a job, for programs that choose among Horovod's controllers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from horovod.common.util import gloo_built, mpi_built
from horovod.launcher.compat import lsf
from horovod.launcher.start.js_run import is_jsrun_installed

__all__ = ["gloo_built", "is_gloo_used", "is_jsrun_installed", "lsf", "mpi_built", "run_controller"]


def is_gloo_used(use_gloo: bool | None = None, use_mpi: bool | None = None, use_jsrun: bool | None = None) -> bool:
    """Return True if run_controller() calls `gloo_run` for these choices."""
    return bool(use_gloo) or not (use_mpi or use_jsrun or _current("mpi_built")())


def run_controller(
    use_gloo: bool | None,
    gloo_run: Callable[[], Any],
    use_mpi: bool | None,
    mpi_run: Callable[[], Any],
    use_jsrun: bool | None,
    js_run: Callable[[], Any],
    verbosity: int | None,
) -> Any:
    """Call the runner of the requested controller; by default MPI's if MPI is available, otherwise Gloo's.

    It calls `gloo_built()`, `mpi_built()` and `is_jsrun_installed()` as horovod.runner.launch defines them at that
    time.

    Raises:
        ValueError: The controller is not available.
    """
    if is_gloo_used(use_gloo, use_mpi, use_jsrun):
        if not _current("gloo_built")():
            unbuilt = "Gloo support has not" if use_gloo else "Neither MPI nor Gloo support has"
            raise ValueError(f"{unbuilt} been built; use another controller, or reinstall khorovod")
        return gloo_run()
    if not _current("mpi_built")():
        raise ValueError(
            "MPI support has not been built: mpi4py is not installed; pip install mpi4py, or use the controller gloo"
        )
    in_lsf = _current("lsf").LSFUtils.using_lsf()
    if use_jsrun and not use_mpi and not in_lsf:
        raise ValueError("jsrun works only inside an LSF job, and no LSF job was found; use another controller")
    by_jsrun = not use_mpi and (use_jsrun or (in_lsf and _current("is_jsrun_installed")()))
    return js_run() if by_jsrun else mpi_run()


def _current(name: str) -> Any:
    """Return what horovod.runner.launch defines by this name now, because callers may have replaced it there."""
    return getattr(sys.modules.get("horovod.runner.launch", sys.modules[__name__]), name)
