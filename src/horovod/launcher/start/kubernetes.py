# SPDX-License-Identifier: Apache-2.0
"""Default hosts inside a launcher pod of Kubeflow: the MPI Operator and Trainer mount them under /etc/mpi."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from horovod.launcher.start.hosts import HostInfo, parse_host_file, parse_hosts

FOLDER = "/etc/mpi"
_HOSTFILE = "hostfile"
_SCRIPT = "discover_hosts.sh"
_SCRIPT_LIMIT_S = 10.0

# Signs of a launcher pod: its role (MPI Operator 2), or a variable that names the hostfile for an MPI.
_ROLE_VARIABLE = "K_MPI_JOB_ROLE"
_HOSTFILE_VARIABLES = (
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
    "I_MPI_HYDRA_HOST_FILE",
    "HYDRA_HOST_FILE",
)
_SLOTS_VARIABLES = ("OMPI_MCA_orte_set_default_slots", "I_MPI_PERHOST")


def is_launcher_pod(environ: Mapping[str, str], folder: str = FOLDER) -> bool:
    hostfile = os.path.join(folder, _HOSTFILE)
    return environ.get(_ROLE_VARIABLE) == "launcher" or any(
        environ.get(name) == hostfile for name in _HOSTFILE_VARIABLES
    )


def default_hosts(environ: Mapping[str, str], folder: str = FOLDER) -> list[HostInfo] | None:
    """Return the hosts to use when -H is missing, or None outside a launcher pod.

    The hostfile lists all workers. Without a hostfile, discover_hosts.sh lists the running ones.

    Raises:
        ValueError: The hosts cannot be parsed.
        OSError: The script cannot be run.
    """
    if not is_launcher_pod(environ, folder):
        return None
    hostfile = Path(folder, _HOSTFILE)
    if hostfile.is_file():
        return _of_hostfile(hostfile)
    script = Path(folder, _SCRIPT)
    if script.is_file():
        return discovered(_run(script), _default_slots(environ), str(script))
    return None


def default_hosts_option(environ: Mapping[str, str], folder: str = FOLDER) -> str | None:
    """Return the default hosts in the notation of -H, or None outside a launcher pod."""
    hosts = default_hosts(environ, folder)
    return None if hosts is None else ",".join(f"{host.hostname}:{host.slots}" for host in hosts)


def discovered(text: str, slots: int, source: str) -> list[HostInfo]:
    """Return hosts from lines `host` or `host:slots`; `slots` is the default. Raise ValueError if there is no host."""
    hosts = [line if ":" in line else f"{line}:{slots}" for line in _lines(text.splitlines())]
    if not hosts:
        raise ValueError(f"{source} names no host: are the workers' pods running?")
    try:
        return parse_hosts(",".join(hosts))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def _of_hostfile(path: Path) -> list[HostInfo]:
    """Parse a hostfile that the operator wrote for Open MPI (`host slots=n`), or for MPICH and Intel MPI (`host:n`)."""
    with path.open(encoding="utf-8", errors="replace") as file:
        lines = _lines(file)
    if lines and all(":" in line for line in lines):
        return discovered("\n".join(lines), 1, str(path))
    return parse_host_file(str(path))


def _run(script: Path) -> str:
    try:
        done = subprocess.run(
            [str(script)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SCRIPT_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"{script} did not end within {_SCRIPT_LIMIT_S:g} s") from None
    if done.returncode != 0:
        raise ValueError(f"{script} ended with exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def _default_slots(environ: Mapping[str, str]) -> int:
    given = next((environ[name] for name in _SLOTS_VARIABLES if environ.get(name)), "1")
    if not given.isascii() or not given.isdigit() or int(given) < 1:
        raise ValueError(f"the slots of a worker must be a number from 1 on, not {given[:100]!r} (set by the operator)")
    return int(given)


def _lines(lines: Iterable[str]) -> list[str]:
    return [text for line in lines if (text := line.partition("#")[0].strip())]
