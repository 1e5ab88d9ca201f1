# SPDX-License-Identifier: Apache-2.0
"""Command that runs an agent on another host, by ssh or a replacement. Pure functions only.

It contains no secret, because other users can read command lines.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from horovod.common.own_programs import module_arguments
from horovod.launcher.start.worker_environment import names_devices

# Older versions of khorovod have this path too, so the launcher can report a version mismatch.
AGENT = "horovod.runner.agent"
SSH_VARIABLE = "HOROVOD_SSH_COMMAND"
_CONNECT_LIMIT_S = 10
# This variable is set in pods of Kubeflow's MPI Operator, whose containers run no sshd.
KUBEXEC_VARIABLE = "OMPI_MCA_plm_rsh_agent"
KUBEXEC_NAME = "kubexec.sh"


@dataclass(frozen=True)
class Reaching:
    """Settings for reaching other hosts by ssh."""

    ssh: str = "ssh"
    port: int | None = None
    identity_file: str | None = None


def ssh_command(host: str, reaching: Reaching, python: str, environ: Mapping[str, str]) -> list[str]:
    kubexec = environ.get(KUBEXEC_VARIABLE, "")
    if os.path.basename(kubexec) == KUBEXEC_NAME:
        return [kubexec, host, remote_line(python, environ)]
    command = [*shlex.split(reaching.ssh), "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_LIMIT_S}"]
    if reaching.port is not None:
        command += ["-p", str(reaching.port)]
    if reaching.identity_file is not None:
        command += ["-i", reaching.identity_file]
    return [*command, host, remote_line(python, environ)]


def agent_command(python: str) -> list[str]:
    return [python, *module_arguments(AGENT)]


def blaunch_command(host: str, python: str, environ: Mapping[str, str]) -> list[str]:
    """Return the command that starts an agent through LSF, which set the host aside and limits the workers there.

    No word contains a blank or a quote, because some versions of blaunch join the words to a shell command.
    """
    command = ["blaunch", "-no-shell", host, python, "-m", AGENT]
    return without_variables(filter(names_devices, environ), command)


def without_variables(names: Iterable[str], command: Sequence[str]) -> list[str]:
    """Return the command without these environment variables, which srun and blaunch would pass on to the host."""
    unset = [word for name in names for word in ("-u", name)]
    return ["env", *unset, *command] if unset else list(command)


def remote_line(python: str, environ: Mapping[str, str]) -> str:
    """Return the command line for the host's login shell, whichever shell that is."""
    words = agent_command(python)
    if environ.get("PYTHONPATH"):  # the host may find the agent itself only by PYTHONPATH
        words = ["env", f"PYTHONPATH={environ['PYTHONPATH']}", *words]
    return "exec " + shlex.join(words)


def program_of(command: Sequence[str]) -> str:
    """Return the program that a command starts on this machine, skipping `env` and its options."""
    if command[0] != "env":
        return command[0]
    words = list(command[1:])
    while words[:1] == ["-u"]:
        del words[:2]
    is_program = bool(words) and not words[0].startswith("-") and "=" not in words[0]
    return words[0] if is_program else "env"


def to_try(command: Sequence[str]) -> str:
    """Return the command for a person who wants to see the problem: ssh may ask questions, and -m is short."""
    words = list(command)
    while "-o" in words:
        at = words.index("-o")
        del words[at : at + 2]
    arguments, short = module_arguments(AGENT), ["-m", AGENT, "--check"]
    if words[-2:] == arguments:
        return shlex.join([*words[:-2], *short])
    return shlex.join([*words[:-1], words[-1].replace(shlex.join(arguments), shlex.join(short))])
