# SPDX-License-Identifier: Apache-2.0
"""Jobs from Horovod's argument object, for programs that call `horovod.launcher.launch._run` themselves."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from horovod.launcher.checks import check_runnable, check_values, refuse_unavailable
from horovod.launcher.options import JobOptions
from horovod.launcher.run_function import FAILED, listed_interfaces, results_of, run_shown, warn_of_what_has_no_effect
from horovod.launcher.start.allocation import default_processes
from horovod.launcher.start.assembly import JobRequest
from horovod.launcher.start.hosts import named_slots
from horovod.launcher.start.job import JobResult
from horovod.launcher.start.jsrun_command import jsrun_words
from horovod.launcher.start.mpi_command import run_by_mpirun
from horovod.launcher.start.mpi_job import MpirunJob
from horovod.launcher.start.not_run import explained
from horovod.launcher.start.running import run_job
from horovod.launcher.start.stop_signals import dropping


def run_arguments(args: argparse.Namespace) -> list[Any] | None:
    """Run the function or the command in `args`. Return the function's results by rank, or None for a command.

    Args:
        args: Parsed flags, with all names of `arguments.DEFAULTS`.

    Raises:
        RuntimeError: The job failed, or its command cannot be run.
    """
    check_values(vars(args))
    num_proc = args.num_proc or named_slots(args.hosts, args.hostfile) or default_processes(os.environ)
    if num_proc is None:
        raise ValueError("num_proc is None: set it to the number of processes")
    options = JobOptions.of({**vars(args), "num_proc": num_proc, "nics": listed_interfaces(args.nics)})
    warn_of_what_has_no_effect(options, "horovod.launcher.launch._run")
    with dropping():
        if args.run_func is None:
            check_runnable(options, args.command)
            _run_command(options, args.command)
            return None
        refuse_unavailable(options)
        if options.use_jsrun:
            raise NotImplementedError("run_func through jsrun is not available: pass a command, or leave use_jsrun out")
        return results_of(options, args.run_func, (), {}, args.executable or sys.executable)


def _run_command(options: JobOptions, command: Sequence[str]) -> None:
    if options.use_mpi:
        _check_ended("mpirun", run_shown(partial(run_by_mpirun, options, command)))
        return
    if options.use_jsrun:
        words, environment = jsrun_words(options, command)
        _check_ended("jsrun", run_shown(lambda tree, output: MpirunJob(tree, output).run(words, environment)))
        return
    try:
        result = run_shown(partial(run_job, JobRequest(options, command)))
    except OSError as error:
        refused = explained(error, command)
        if refused is None:
            raise
        raise RuntimeError(refused[0]) from error
    if result.exit_code != 0:
        raise RuntimeError(f"{FAILED}\n{result.text}")


def _check_ended(launcher: str, result: JobResult) -> None:
    if result.exit_code != 0:
        raise RuntimeError(f"{launcher} failed with exit code {result.exit_code}")
