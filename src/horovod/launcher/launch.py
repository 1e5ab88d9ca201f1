# SPDX-License-Identifier: Apache-2.0
"""The `horovodrun` command: parse the command line and run the job.

Also available as `python -m horovod.runner.launch`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from horovod.launcher import without_effect
from horovod.launcher.arguments import DEFAULTS, FlagParser
from horovod.launcher.checks import check_runnable, check_values
from horovod.launcher.options import JobOptions
from horovod.launcher.start.allocation import default_processes
from horovod.launcher.start.hosts import named_slots
from horovod.launcher.start.kubernetes import default_hosts_option
from horovod.launcher.start.not_run import JOB_ERROR, USAGE_ERROR
from horovod.launcher.start.stop_signals import dropping

if TYPE_CHECKING:
    from horovod.launcher.output.user_output import UserOutput
    from horovod.launcher.start.processes import ProcessTree


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line merged with the config file and the defaults. Raise ValueError for a bad value.

    The command may be missing: only the functions that run a job require one.
    """
    flags = FlagParser()
    given = flags.parse(sys.argv[1:] if argv is None else argv)
    options = {**DEFAULTS, **given}
    if options["version"] or options["check_build"]:
        return argparse.Namespace(**options)
    if given.get("config_file") is not None:
        options = {**DEFAULTS, **_read_config(given), **given}
    check_values(options)
    if all(options[name] is None for name in ("hosts", "hostfile", "host_discovery_script")):
        options["hosts"] = default_hosts_option(os.environ)
    if options["num_proc"] is None:
        options["num_proc"] = named_slots(options["hosts"], options["hostfile"]) or default_processes(os.environ)
    if options["num_proc"] is None:
        flags.error("-np (--num-proc) is required outside LSF and Slurm: how many processes?")
    return argparse.Namespace(**options)


def run_commandline() -> None:
    """Run `horovodrun` and exit with its exit code."""
    try:
        code = _main(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def _main(argv: Sequence[str]) -> int:
    try:
        args = parse_args(argv)
        if args.version:
            from horovod.common.version import VERSION

            print(VERSION)
            return 0
        if args.check_build:
            check_build(args.verbose)
            return 0
        with dropping():
            return _launch(args)
    except (ValueError, NotImplementedError) as error:
        print(f"horovodrun: error: {error}", file=sys.stderr)
        return USAGE_ERROR
    except OSError as error:
        print(f"horovodrun: error: {error}", file=sys.stderr)
        return USAGE_ERROR
    except RuntimeError as error:
        from horovod.launcher.start.limits import explain_shortage, is_shortage

        if not is_shortage(error):
            raise
        # Print directly, because no writer thread can be started.
        print(f"horovodrun: error: {explain_shortage(error)}", file=sys.stderr)
        return USAGE_ERROR


def _run(args: argparse.Namespace) -> list[Any] | None:
    """Run the job that `args` describe, for programs that call this instead of `horovodrun` or `horovod.run`.

    Args:
        args: what parse_args() returned, or a `horovod.runner._HorovodArgs`.

    Returns:
        What `args.run_func` returned on each rank, by rank; None if `args.command` was run.

    Raises:
        RuntimeError: the job failed, or its command cannot be run.
    """
    from horovod.launcher.run_arguments import run_arguments

    return run_arguments(argparse.Namespace(**{**DEFAULTS, **vars(args)}))


def _launch(args: argparse.Namespace) -> int:
    """Run the job of a command line; return the exit code of horovodrun."""
    options = JobOptions.of(vars(args))
    check_runnable(options, args.command)
    if options.use_jsrun:
        from horovod.launcher.start.jsrun_command import run_by_jsrun

        run_by_jsrun(options, args.command)
    from horovod.launcher.output.user_output import fill_closed_descriptors, output_of_process
    from horovod.launcher.start.limits import explain_shortage
    from horovod.launcher.start.processes import CannotRunError, ProcessTree

    fill_closed_descriptors()
    output = output_of_process()
    code = USAGE_ERROR
    try:
        with ProcessTree() as tree:  # entered first, so that its process starts while the other modules are imported
            code = _run_in(tree, options, args.command, output)
    except (ValueError, NotImplementedError, OSError) as error:
        output.say(f"error: {explain_shortage(error)}")
    except CannotRunError as error:
        output.say(f"error: {error}")
        code = JOB_ERROR
    finally:
        output.close(went_well=code == 0)
    return JOB_ERROR if code == 0 and output.is_incomplete else code


def _run_in(tree: ProcessTree, options: JobOptions, command: Sequence[str], output: UserOutput) -> int:
    from horovod.launcher.start.worker_environment import shows_warnings

    if shows_warnings(options):
        for name in without_effect.given(options):
            output.say(without_effect.sentence(without_effect.FLAGS[name]))
        for name in without_effect.given_without_driver(options):
            flag = without_effect.ELASTIC_FLAGS[name]
            output.say(without_effect.needs_driver(flag, "--min-np", "--host-discovery-script"))
    if options.use_mpi:
        from horovod.launcher.start.mpi_command import run_by_mpirun

        return run_by_mpirun(options, command, tree, output).exit_code
    from horovod.launcher.start.assembly import JobRequest
    from horovod.launcher.start.running import run_job

    try:
        return run_job(JobRequest(options, command), tree, output).exit_code
    except OSError as error:
        from horovod.launcher.start.not_run import explained

        why = explained(error, command)
        if why is None:
            raise
        output.say(f"error: {why[0]}")
        return why[1]


def check_build(verbose: bool) -> None:
    """Print which frameworks, controllers and tensor operations work on this machine."""
    from horovod.launcher.check_build import report

    print(report(verbose))


def _read_config(given: dict[str, Any]) -> dict[str, Any]:
    """Return the config file's values, and print a warning for each unknown key."""
    from horovod.launcher.config_file import read_config_file
    from horovod.launcher.start.worker_environment import shows_warnings

    unknown: list[str] = []
    values = read_config_file(given["config_file"], unknown.append)
    if shows_warnings(JobOptions.of({**values, **given})):
        for text in unknown:
            print(f"horovodrun: warning: {text}", file=sys.stderr)
    return _without_overruled_controller(values, given)


def _without_overruled_controller(from_file: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    controllers = ("use_gloo", "use_mpi", "use_jsrun")
    if any(given.get(name) for name in controllers):
        return {name: value for name, value in from_file.items() if name not in controllers}
    return from_file


if __name__ == "__main__":
    run_commandline()
