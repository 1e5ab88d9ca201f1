# SPDX-License-Identifier: Apache-2.0
"""The libraries that can be measured: whether they are here, and how their ranks are launched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from testkit.variables import of_ranks

from benchkit.world import World


class Khorovod(World):
    """Our engine, started from plain environment variables. `extra` changes its settings for a comparison."""

    def __init__(
        self,
        ranks: int,
        cores: Sequence[int],
        transport: str,
        name: str = "khorovod",
        extra: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name, ranks, cores, transport)
        self._extra = dict(extra or {})

    def unavailable(self) -> str | None:
        return _cannot_import(sys.executable, "import horovod.numpy", self._extra)

    def launch(self, worker_arguments: list[str]) -> None:
        neighbours = 1 if self.hosts else self.ranks
        sockets = {"HOROVOD_SHARED_MEMORY": "0"} if self.transport == "tcp" and not self.hosts else {}
        for rank, own in enumerate(of_ranks(self.ranks, neighbours, self.address())):
            host = {"HOROVOD_HOSTNAME": f"host{rank}"} if self.hosts else {}
            self.spawn_rank(rank, "khorovod", worker_arguments, own | sockets | host | self._extra)


class Gloo(World):
    """torch.distributed's Gloo. It knows TCP only, so `transport` makes no difference to it."""

    def __init__(self, ranks: int, cores: Sequence[int], transport: str) -> None:
        super().__init__("gloo", ranks, cores, "tcp")

    def unavailable(self) -> str | None:
        return _cannot_import(sys.executable, "import torch.distributed")

    def launch(self, worker_arguments: list[str]) -> None:
        store = {"BENCH_STORE": str(self.folder / "store"), "GLOO_SOCKET_IFNAME": self.interface()}
        for rank in range(self.ranks):
            self.spawn_rank(rank, "gloo", worker_arguments, store)


class Mpi(World):
    """An MPI library by its own mpiexec, with the Python that has mpi4py for it (often another environment's)."""

    vendor = ""  # as the library names itself

    def __init__(self, name: str, ranks: int, cores: Sequence[int], transport: str, python: str) -> None:
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
        # Beside the interpreter first: a wheel's mpiexec and its library belong together.
        beside = Path(self.python).parent / "mpiexec"
        return str(beside) if beside.exists() else shutil.which("mpiexec")


class OpenMpi(Mpi):
    vendor = "Open MPI"

    def launch(self, worker_arguments: list[str]) -> None:
        if self.hosts is None:
            super().launch(worker_arguments)
            return
        # One mpiexec on the first host; each rank enters its own, from where it reaches mpiexec over the network.
        command = [*self.hosts.inside(0), str(self.mpiexec()), *self.flags()]
        command += ["--mca", "btl_tcp_if_include", self.interface()]
        for rank in range(self.ranks):
            worker = [self.python, "-m", self.worker, "mpi", *worker_arguments]
            command += [*([":"] if rank else []), "-n", "1", *self.hosts.inside(rank), *worker]
        reachable = {f"{name}_ptl_base_if_include": self.interface() for name in ("PMIX_MCA", "PRTE_MCA")}
        reachable |= {"PRTE_MCA_prte_if_include": self.interface(), "PMIX_MCA_ptl_base_remote_connections": "1"}
        self.spawn(command, self.variables() | reachable)

    def flags(self) -> list[str]:
        tcp = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"] if self.transport == "tcp" else []
        count = [] if self.hosts else super().flags()
        return [*count, "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE", *tcp]

    def variables(self) -> dict[str, str]:
        return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class Mpich(Mpi):
    vendor = "MPICH"

    def variables(self) -> dict[str, str]:
        # MPICH's own shared memory off, then also that of the network layer it was built on.
        tcp = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self", "FI_PROVIDER": "tcp"}
        return tcp if self.transport == "tcp" else {}


def _cannot_import(python: str, statement: str, extra: Mapping[str, str] | None = None) -> str | None:
    environment = os.environ | dict(extra or {})
    try:
        done = subprocess.run([python, "-c", statement], capture_output=True, text=True, timeout=60, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["import failed"])[-1]
