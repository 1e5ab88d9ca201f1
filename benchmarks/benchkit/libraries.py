# SPDX-License-Identifier: Apache-2.0
"""Libraries that can be measured: checks that they are installed, and launches of their ranks."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from testkit.variables import of_ranks

from benchkit.world import Hosts, World


class Khorovod(World):
    """World of Khorovod's engine, started with environment variables. `extra` changes its settings for a comparison."""

    def __init__(
        self,
        ranks: int,
        cores: Sequence[int | str],
        transport: str,
        name: str = "khorovod",
        extra: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name, ranks, cores, transport)
        self._extra = dict(extra or {})

    def unavailable(self) -> str | None:
        return _cannot_import(sys.executable, "import horovod.numpy", self._extra)

    def launch(self, worker_arguments: list[str]) -> None:
        neighbours = self.hosts.neighbours if self.hosts else self.ranks
        sockets = {"HOROVOD_SHARED_MEMORY": "0"} if self.transport == "tcp" and not self.hosts else {}
        for rank, own in enumerate(of_ranks(self.ranks, neighbours, self.address())):
            host = {"HOROVOD_HOSTNAME": self.hosts.name(rank)} if self.hosts else {}
            self.spawn_rank(rank, "khorovod", worker_arguments, own | sockets | host | self._extra)


class Gloo(World):
    """World of torch.distributed with Gloo. It supports only TCP, so `transport` is ignored."""

    def __init__(self, ranks: int, cores: Sequence[int | str], transport: str) -> None:
        super().__init__("gloo", ranks, cores, "tcp")

    def unavailable(self) -> str | None:
        return _cannot_import(sys.executable, "import torch.distributed")

    def launch(self, worker_arguments: list[str]) -> None:
        store = {"BENCH_STORE": str(self.folder / "store"), "GLOO_SOCKET_IFNAME": self.interface()}
        for rank in range(self.ranks):
            self.spawn_rank(rank, "gloo", worker_arguments, store)


class Mpi(World):
    """World of an MPI library, launched by its mpiexec, with a Python whose mpi4py uses it (often in another venv)."""

    vendor = ""  # the library's own name

    def __init__(self, name: str, ranks: int, cores: Sequence[int | str], transport: str, python: str) -> None:
        super().__init__(name, ranks, cores, transport)
        self.python = python

    def unavailable(self) -> str | None:
        found = "import sys; from mpi4py import MPI; found = MPI.Get_library_version().splitlines()[0]"
        wrong = f"sys.exit(None if '{self.vendor}' in found else 'mpi4py has another MPI: ' + found)"
        reason = _cannot_import(self.python, f"{found}; {wrong}")
        return reason or (None if self.mpiexec() else "mpiexec is not installed")

    def launch(self, worker_arguments: list[str]) -> None:
        command = [str(self.mpiexec()), *self.flags(), self.python, "-m", self.worker, "mpi", *worker_arguments]
        self.spawn(command, self.variables())

    def flags(self) -> list[str]:
        return ["-n", str(self.ranks)]

    def variables(self) -> dict[str, str]:
        return {}

    def mpiexec(self) -> str | None:
        # First look beside the interpreter, because a wheel's mpiexec and library belong together.
        beside = Path(self.python).parent / "mpiexec"
        return str(beside) if beside.exists() else shutil.which("mpiexec")


class OpenMpi(Mpi):
    vendor = "Open MPI"

    def launch(self, worker_arguments: list[str]) -> None:
        if self.hosts is None:
            super().launch(worker_arguments)
            return
        # As on real hosts, mpiexec on the first host starts a daemon on each other host, so that Open MPI knows which
        # ranks share memory. Only ssh is replaced, by this program.
        agent = self.folder / "agent"
        agent.write_text(_agent(self.hosts, self.ranks))
        agent.chmod(0o700)
        places = [f"{self.hosts.address(rank)}:{self.hosts.neighbours}" for rank in self._first_ranks()]
        command = [str(agent), self.hosts.address(0), str(self.mpiexec()), "--prtemca", "plm_ssh_agent", str(agent)]
        command += ["-H", ",".join(places), *self.flags(), "--mca", "btl_tcp_if_include", self.interface()]
        for name in ("PYTHONPATH", "OMP_NUM_THREADS"):
            command += ["-x", name]
        self.spawn([*command, self.python, "-m", self.worker, "mpi", *worker_arguments], self.variables())

    def _first_ranks(self) -> range:
        """Return the first rank of each host."""
        return range(0, self.ranks, self.hosts.neighbours if self.hosts else self.ranks)

    def flags(self) -> list[str]:
        ways = "tcp,sm,self" if self.hosts else "tcp,self"
        tcp = ["--mca", "pml", "ob1", "--mca", "btl", ways] if self.transport == "tcp" else []
        # Each host seems to have enough slots, so tell Open MPI to yield, because the hosts share fewer cores.
        polite = ["--mca", "mpi_yield_when_idle", "1"] if self.hosts and not self.cores else []
        return [*super().flags(), "--bind-to", "none", "--map-by", "slot:OVERSUBSCRIBE", *tcp, *polite]

    def variables(self) -> dict[str, str]:
        return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class Mpich(Mpi):
    vendor = "MPICH"

    def variables(self) -> dict[str, str]:
        # These turn off MPICH's shared memory, and that of the network layers UCX and libfabric.
        tcp = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self", "FI_PROVIDER": "tcp"}
        return tcp if self.transport == "tcp" else {}


def _agent(hosts: Hosts, ranks: int) -> str:
    """Return a program `agent ADDRESS COMMAND...` that replaces ssh: it runs the command on that host."""
    cases = [
        f"{hosts.address(rank)}) exec {shlex.join(hosts.inside(rank))} unshare --uts sh -c "
        f'\'hostname {hosts.name(rank)} && exec sh -c "$0"\' "$*" ;;'
        for rank in range(0, ranks, hosts.neighbours)
    ]
    return "\n".join(["#!/bin/sh", "host=$1", "shift", 'case "$host" in', *cases, "esac", "exit 1", ""])


def _cannot_import(python: str, statement: str, extra: Mapping[str, str] | None = None) -> str | None:
    environment = os.environ | dict(extra or {})
    try:
        done = subprocess.run([python, "-c", statement], capture_output=True, text=True, timeout=60, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["import failed"])[-1]
