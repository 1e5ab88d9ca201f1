# SPDX-License-Identifier: Apache-2.0
"""Explanations of why a worker's command cannot be run, and horovodrun's exit codes, which are those of a shell."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
from collections.abc import Sequence

from horovod.common.settings_values import shown
from horovod.common.suggestions import did_you_mean

JOB_ERROR = 1
USAGE_ERROR = 2
COMMAND_NOT_EXECUTABLE = 126
COMMAND_NOT_FOUND = 127
_NOT_RUN = {
    errno.ENOENT: ("command not found", COMMAND_NOT_FOUND),
    errno.ENOTDIR: ("command not found", COMMAND_NOT_FOUND),
    errno.EACCES: ("permission denied", COMMAND_NOT_EXECUTABLE),
    errno.ENOEXEC: ("not a program", COMMAND_NOT_EXECUTABLE),
}
_KERNEL_READS = 256  # bytes of a script's first line
_SHOWN = 200
_NEAR = 0.75  # similarity required for a suggestion; high, because PATH has thousands of short names
_ELF = b"\x7fELF"
_OF_ELF = {
    errno.ENOENT: "the file is there, but it is made for another system: its loader is missing here",
    errno.ENOEXEC: "the file is there, but it is built for another processor",
}


class StartError(OSError):
    """Error: the kernel of a host refused to run a rank's command. `host` is None for this machine."""

    def __init__(self, number: int, text: str, program: str, host: str | None) -> None:
        super().__init__(number, text, program)
        self.host = host


def host_elsewhere(host: str) -> str | None:
    """Return the name of another host, or None for this machine."""
    from horovod.launcher.start.hosts import is_local  # imported late, because each rank under mpirun imports this file

    return None if is_local(host) else host


def explained(error: OSError, command: Sequence[str]) -> tuple[str, int] | None:
    """Return the message and exit code for a command that the kernel refused to run, or None for other errors."""
    if error.filename != command[0] or error.errno not in _NOT_RUN:
        return None
    text, code = _NOT_RUN[error.errno]
    if isinstance(error, StartError) and error.host is not None:  # files of this machine say nothing about another host
        return f"{text} on host {error.host}: {shown(command[0])}", code
    program = shutil.which(command[0])
    if program is not None and (reason := _of_what_it_names(program, error.errno)) is not None:
        return f"cannot run {shown(command[0])}: {reason}", code
    return f"{text}: {shown(command[0])}{_meant(command, code)}", code


def _of_what_it_names(program: str, number: int) -> str | None:
    """Return what is wrong with the interpreter of a script or the loader of a program, or None."""
    try:
        with open(program, "rb") as file:
            start = file.read(_KERNEL_READS)
    except OSError:
        return None
    if start.startswith(_ELF):
        return _OF_ELF.get(number)
    interpreter = interpreter_in(start)
    if interpreter is None or os.access(interpreter, os.X_OK):
        return None
    what = "is not a program" if os.path.exists(interpreter) else "does not exist"
    reason = f"its first line names the interpreter {shown(interpreter)}, which {what} here"
    if interpreter.endswith("\r"):
        file_name = shlex.quote(program[:_SHOWN])
        return f"{reason}; the file has the line ends of Windows, remove them: sed -i 's/\\r$//' {file_name}"
    return f"{reason}; install it or correct that line"


def interpreter_in(start: bytes) -> str | None:
    """Return the interpreter in the first line of a script, as the kernel reads it, or None if there is none."""
    line = start.partition(b"\n")[0]
    if not line.startswith(b"#!"):
        return None
    words = line[2:].strip(b" \t").replace(b"\t", b" ").split(b" ")
    return os.fsdecode(words[0]) or None


def _meant(command: Sequence[str], code: int) -> str:
    """Return a suggestion for the name of a Python file or a misspelt program, or an empty string."""
    name = command[0]
    if name.endswith(".py") and os.path.isfile(name):
        return f"; did you mean this? horovodrun ... {shlex.join(['python', *command])[:_SHOWN]}"
    if code != COMMAND_NOT_FOUND:
        return "; make it executable: chmod +x" if code == COMMAND_NOT_EXECUTABLE and os.path.isfile(name) else ""
    return did_you_mean(name, _programs(), cutoff=_NEAR) if os.path.basename(name) == name else ""


def _programs() -> list[str]:
    """Return the names of all files in the folders of PATH."""
    names: set[str] = set()
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        try:
            names.update(os.listdir(folder or "."))
        except OSError:
            continue
    return sorted(names)
