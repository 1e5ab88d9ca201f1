# SPDX-License-Identifier: Apache-2.0
"""What mpirun starts in place of a rank's command if its output is to be tagged or written to files.

This process becomes the command (exec), so that mpirun's signals, exit codes and descriptors are the command's own.
Before that it forks a forwarder in a session of its own, which reads what the command prints, and ends when the last
process that could print has ended.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from horovod.common.own_programs import module_arguments
from horovod.common.topology import discover
from horovod.launcher.options import JobOptions
from horovod.launcher.output.forwarding import OutputForwarder, OutputOptions, wants_colour
from horovod.launcher.output.user_output import UserOutput
from horovod.launcher.output.writers import is_same_file, to_descriptor
from horovod.launcher.start.not_run import USAGE_ERROR, explained

_DEFAULT_IN_PROGRAMS = (signal.SIGPIPE, signal.SIGXFSZ)  # which Python ignores, and the command would inherit that
_NOT_FOR_FORWARDER = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def wrapped(command: Sequence[str], options: JobOptions) -> list[str]:
    """Return the command that mpirun is to start for each rank: without any flag about output, the command itself."""
    words = ["--tags"] * (options.tag == "always")
    words += ["--timestamps"] * bool(options.prefix_output_with_timestamp)
    if options.output_filename is not None:
        words += ["--directory", os.path.abspath(options.output_filename)]
    if not words:
        return list(command)
    words += ["--colour"] * wants_colour()
    return [sys.executable, *module_arguments(__name__), *words, "--", *command]


def main() -> int:
    parser = argparse.ArgumentParser()
    for flag in ("--tags", "--timestamps", "--colour"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--directory")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    place = discover(os.environ)
    shown = OutputOptions(
        size=place.size,
        directory=given.directory,
        timestamps=given.timestamps,
        colour=given.colour,
        tags=given.tags,
        fold_tracebacks=False,
        own_rank=place.rank,
    )
    if problem := _redirect(shown, place.rank):
        print(f"horovodrun: error: rank {place.rank} cannot keep its output: {problem}", file=sys.stderr)
        return USAGE_ERROR
    for number in _DEFAULT_IN_PROGRAMS:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(given.command[0], given.command)
    except OSError as error:
        program = given.command[0]  # the error names the last file that was tried
        unknown = f"{error.strerror}: {program!r}", USAGE_ERROR
        text, code = explained(OSError(error.errno or 0, error.strerror, program), given.command) or unknown
        print(f"horovodrun: error: {text}", file=sys.stderr)
        return code


def _redirect(shown: OutputOptions, rank: int) -> str:
    """Let a forwarder take what this process prints from now on; return why that is not possible, or an empty text."""
    pipes, report = [os.pipe(), os.pipe()], os.pipe()
    try:
        child = os.fork()
    except OSError as error:
        return str(error)
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:  # its parent ends: no program waits for a child that it has not started
                _forward(shown, rank, [read for read, _ in pipes], report[1])
        except BaseException as error:  # of any kind: this process must not go on as a second rank
            with suppress(OSError):  # once the forwarder runs, no process reads the report
                os.write(report[1], (str(error) or repr(error)).encode(errors="replace"))
        os._exit(0)
    os.waitpid(child, 0)
    os.close(report[1])
    with open(report[0], "rb") as answer:
        problem = answer.read().decode(errors="replace")
    for (_, write), descriptor in zip(pipes, (1, 2), strict=True):
        if not problem:
            os.dup2(write, descriptor)
    return problem


def _forward(shown: OutputOptions, rank: int, pipes: Sequence[int], report: int) -> None:
    """Read the pipes until no process can write to them any more. Does not return."""
    for number in _NOT_FOR_FORWARDER:
        signal.signal(number, signal.SIG_IGN)
    _close_all_but({0, 1, 2, report, *pipes})
    over = threading.Event()
    output = UserOutput(to_descriptor(1), to_descriptor(2), are_one=is_same_file(1, 2))
    forwarder = OutputForwarder(shown, output, over.set)
    forwarder.add(rank, *(os.fdopen(pipe, "rb", buffering=0) for pipe in pipes))
    forwarder.start()
    os.close(report)
    over.wait()
    forwarder.stop()
    output.close(went_well=True)
    os._exit(0)


def _close_all_but(kept: set[int]) -> None:
    """Close what mpirun has opened for the rank, so that it learns when the rank has closed it."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))
