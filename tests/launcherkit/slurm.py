# SPDX-License-Identifier: Apache-2.0
"""A Slurm cluster of two nodes on this machine: munged, slurmctld and two slurmd, on ports of their own."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from testkit.processes import Process, run
from testkit.variables import free_ports

_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
_NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
_LIMIT_S = 30.0
_BOTH_IDLE = ["idle", "idle"]

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def missing() -> list[str]:
    """The programs of Slurm and MUNGE that are not installed here."""
    return [name for name in _NEEDED if shutil.which(name, path=_PATH) is None]


@contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """The environment in which srun reaches the cluster."""
    folder.chmod(0o755)
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o600)
    configuration = folder / "slurm.conf"
    host = socket.gethostname().partition(".")[0]
    configuration.write_text(
        _CONFIGURATION.format(folder=folder, host=host, user=getpass.getuser(), ports=free_ports(3))
    )
    environment = {"PATH": _PATH, "SLURM_CONF": str(configuration)}
    munge = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    with ExitStack() as stack:
        daemons = [
            stack.enter_context(_daemon(command, environment))
            for command in (
                ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *munge],
                ["slurmctld", "-D"],
                ["slurmd", "-D", "-N", "n1"],
                ["slurmd", "-D", "-N", "n2"],
            )
        ]
        _await_idle_nodes(environment, daemons)
        yield environment


@contextmanager
def _daemon(command: list[str], environment: dict[str, str]) -> Iterator[Process]:
    program = shutil.which(command[0], path=_PATH)
    assert program is not None
    with Process([program, *command[1:]], environment) as process:
        yield process
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)


def _await_idle_nodes(environment: dict[str, str], daemons: list[Process]) -> None:
    give_up = time.monotonic() + _LIMIT_S
    while (shown := run(["sinfo", "--noheader", "--Node", "--format=%t"], environment)).stdout.split() != _BOTH_IDLE:
        if time.monotonic() > give_up:
            logs = "\n".join(f"--- {' '.join(daemon.args)}\n{daemon.printed(2000)}" for daemon in daemons)
            raise AssertionError(f"the nodes are not idle after {_LIMIT_S} s: {shown.stdout}{shown.stderr}\n{logs}")
        time.sleep(0.2)
