# SPDX-License-Identifier: Apache-2.0
"""Checks of a job's options before anything starts, for horovodrun's flags and for `horovod.run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from horovod.launcher.options import JobOptions
from horovod.launcher.start.limits import check_cooldown, check_reset_limit


def check_runnable(options: JobOptions, command: Sequence[str] | None) -> None:
    """Raise ValueError if there is no command, and NotImplementedError for options that this version cannot combine."""
    if not command:
        raise ValueError("no command given: what should every rank run? For example: horovodrun -np 2 python train.py")
    refuse_unavailable(options)


def refuse_unavailable(options: JobOptions) -> None:
    """Raise NotImplementedError for options that this version cannot combine."""
    if options.is_elastic and (options.use_mpi or options.use_jsrun):
        raise NotImplementedError(
            "elastic training (--min-np, --host-discovery-script) through mpirun or jsrun is not available"
        )
    if options.settings.get("HOROVOD_MAX_RESTARTS") and (options.use_mpi or options.use_jsrun):
        raise NotImplementedError("--max-restarts through mpirun or jsrun is not available")


def check_values(options: Mapping[str, Any]) -> None:
    """Raise ValueError for a value that no job can have. `options` is keyed by the names of the parsed flags."""
    for name in ("num_proc", "min_num_proc", "max_num_proc", "slots", "start_timeout"):
        if options[name] is not None and options[name] < 1:
            flag = "-np" if name == "num_proc" else "--" + name.replace("_", "-")
            raise ValueError(f"{flag} must be at least 1, not {options[name]}")
    check_reset_limit(options["reset_limit"])
    check_cooldown(options["cooldown_range"])
    check_output_folder(options["output_filename"])


def check_output_folder(folder: str | None) -> None:
    """Raise ValueError if --output-filename is empty, because the files would go to the current directory."""
    if folder == "":
        raise ValueError(
            "--output-filename is empty: name a directory for the workers' output, or leave output_filename out"
        )
