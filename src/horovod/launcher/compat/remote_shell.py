# SPDX-License-Identifier: Apache-2.0
"""Commands for other hosts. The user's ssh configuration decides how host keys are checked."""

from __future__ import annotations

import os
import shlex

from horovod.launcher.compat.env import KUBEFLOW_MPI_EXEC, is_kubeflow_mpi

SSH_ATTEMPTS = 5
SSH_CONNECT_TIMEOUT_S = 10
SSH_COMMAND_PREFIX = "ssh -o PasswordAuthentication=no"


def get_ssh_command(
    local_command: str,
    host: str,
    port: int | None = None,
    identity_file: str | None = None,
    timeout_s: int | None = None,
) -> str:
    """Return a shell command that runs `local_command` on the host."""
    words = [SSH_COMMAND_PREFIX]
    if timeout_s is not None:
        words.append(f"-o ConnectTimeout={int(timeout_s)}")
    if port is not None:
        words.append(f"-p {int(port)}")
    if identity_file is not None:
        words.append(f"-i {shlex.quote(identity_file)}")
    return " ".join([*words, shlex.quote(host), shlex.quote(local_command)])


def get_remote_command(
    local_command: str,
    host: str,
    port: int | None = None,
    identity_file: str | None = None,
    timeout_s: int | None = None,
) -> str:
    """Return a command that runs `local_command` on the host.

    It uses kubexec under Kubeflow's MPI operator, otherwise ssh.
    """
    if is_kubeflow_mpi(os.environ):
        return f"{KUBEFLOW_MPI_EXEC} {shlex.quote(host)} {shlex.quote(local_command)}"
    return get_ssh_command(local_command, host, port, identity_file, timeout_s)
