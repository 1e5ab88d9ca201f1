# SPDX-License-Identifier: Apache-2.0
"""Program that mpirun starts in place of a rank's command if its output is tagged or written to files.

This process becomes the command (exec), so that mpirun's signals, exit codes and descriptors belong to the command.
Before that it forks a forwarder in a session of its own, which reads the command's output. The forwarder ends when the
last process that can write to the pipes has ended.
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

_DEFAULT_IN_PROGRAMS = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores these, and the command would inherit that
_NOT_FOR_FORWARDER = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def wrapped(command: Sequence[str], options: JobOptions) -> list[str]:
    """Return the command that mpirun starts for each rank: the command itself if no flag about output was given."""
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
        print(f"horovodrun: error: rank {place.rank} cannot write its output: {problem}", file=sys.stderr)
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
    """Redirect this process's output to a forwarder. Return the reason if that fails, otherwise an empty string."""
    pipes, report = [os.pipe(), os.pipe()], os.pipe()
    try:
        child = os.fork()
    except OSError as error:
        return str(error)
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:  # the parent exits, so that the command does not become the parent of an unknown child
                _forward(shown, rank, [read for read, _ in pipes], report[1])
        except BaseException as error:  # any exception: this process must not go on as a second rank
            with suppress(OSError):  # fails once the forwarder runs, because the report is then closed
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
    """Forward the pipes' content until no process can write to them any more. Does not return."""
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
    """Close the descriptors that mpirun opened for the rank, so that mpirun notices when the rank closes its own."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))
