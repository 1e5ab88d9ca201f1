# SPDX-License-Identifier: Apache-2.0
"""Slurm cluster of two nodes on this machine: munged, slurmctld and two slurmd, on free ports.

Each node has two cores and two fake GPUs. Where the machine allows it, cgroups confine jobs to their resources.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from testkit.processes import Process, run
from testkit.speed import patience
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
TaskPlugin={task_plugin}
GresTypes=gpu
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 Gres=gpu:2
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 Gres=gpu:2
PartitionName=all Nodes=ALL Default=YES State=UP
"""
_CGROUP_CONFIGURATION = """\
CgroupPlugin=cgroup/v1
ConstrainCores=yes
ConstrainDevices=yes
"""
_CGROUPS = Path("/sys/fs/cgroup")
_CONTROLLERS = ("cpuset", "devices")
_NOBODYS_DEVICE = 240  # a major number for local use; no driver serves it, so opening such a device fails


@dataclass(frozen=True)
class Cluster:
    """Running cluster.

    Attributes:
        environment: Variables with which srun connects to it.
        gpus: Fake devices that each node has.
        has_cgroups: True if a job cannot access other cores and devices than its own.
    """

    environment: dict[str, str]
    nodes: tuple[str, str]
    gpus: tuple[Path, Path]
    has_cgroups: bool


def missing() -> list[str]:
    """Return the programs of Slurm and MUNGE that are not installed here."""
    return [name for name in _NEEDED if shutil.which(name, path=_PATH) is None]


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    folder.chmod(0o755)
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o600)
    ports = free_ports(3)
    # Unique, because cgroups have these names and other clusters may run on this machine.
    nodes = f"n{ports[0]}-1", f"n{ports[0]}-2"
    has_cgroups = _can_make_cgroups()
    gpus = _fake_gpus(folder)
    _configure(folder, ports, nodes, has_cgroups, gpus)
    environment = {"PATH": _PATH, "SLURM_CONF": str(folder / "slurm.conf")}
    munge = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    with ExitStack() as stack:
        if has_cgroups:
            stack.callback(_remove_cgroups, nodes)
        daemons = [
            stack.enter_context(_daemon(command, environment))
            for command in (
                ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *munge],
                ["slurmctld", "-D"],
                *(["slurmd", "-D", "-N", node] for node in nodes),
            )
        ]
        _await_idle_nodes(environment, daemons)
        yield Cluster(environment, nodes, gpus, has_cgroups)


def _configure(
    folder: Path, ports: list[int], nodes: tuple[str, str], has_cgroups: bool, gpus: tuple[Path, Path]
) -> None:
    text = _CONFIGURATION.format(
        folder=folder,
        host=socket.gethostname().partition(".")[0],
        user=getpass.getuser(),
        ports=ports,
        nodes=nodes,
        task_plugin="task/affinity" + ",task/cgroup" * has_cgroups,
    )
    (folder / "slurm.conf").write_text(text)
    (folder / "gres.conf").write_text("".join(f"NodeName={','.join(nodes)} Name=gpu File={gpu}\n" for gpu in gpus))
    (folder / "cgroup.conf").write_text(_CGROUP_CONFIGURATION if has_cgroups else "")


def _fake_gpus(folder: Path) -> tuple[Path, Path]:
    """Create two device files; without root, ordinary files, which Slurm accepts and which are used without cgroups."""
    first, second = folder / "gpu0", folder / "gpu1"
    for number, path in enumerate((first, second)):
        if os.geteuid() == 0:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(_NOBODYS_DEVICE, number))
        else:
            path.touch()
    return first, second


def _can_make_cgroups() -> bool:
    """Return True if cgroups of version 1 can be created.

    Version 2 needs systemd, and containers often allow neither.
    """
    return os.geteuid() == 0 and all(os.access(_CGROUPS / name / "cgroup.procs", os.W_OK) for name in _CONTROLLERS)


def _remove_cgroups(nodes: tuple[str, str]) -> None:
    for top in (_CGROUPS / controller / f"slurm_{node}" for controller in _CONTROLLERS for node in nodes):
        for folder, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):
                os.rmdir(folder)


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
    give_up = time.monotonic() + patience(_LIMIT_S)
    while (shown := run(["sinfo", "--noheader", "--Node", "--format=%t"], environment)).stdout.split() != _BOTH_IDLE:
        if time.monotonic() > give_up:
            logs = "\n".join(f"--- {' '.join(daemon.args)}\n{daemon.printed(2000)}" for daemon in daemons)
            raise AssertionError(f"the nodes are not idle after {_LIMIT_S} s: {shown.stdout}{shown.stderr}\n{logs}")
        time.sleep(0.2)
