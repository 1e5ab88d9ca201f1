# SPDX-License-Identifier: Apache-2.0
"""mpi4py's MPI for this package: loaded late, checked against this job, and finalized so that nothing hangs.

The code that loads MPI must also finalize it. If the user's program has loaded it, mpi4py finalizes it when the process
ends. After a rank was lost, that would wait indefinitely.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from horovod.common.own_programs import program_arguments
from horovod.common.topology import Topology

_loaded_in: int | None = None  # id of the process in which this module loaded MPI
_broken = False


def is_installed() -> bool:
    return importlib.util.find_spec("mpi4py") is not None


_LOOK = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version().strip("\\0").splitlines()[0].split(",")[0].strip())
"""


@functools.cache
def look() -> tuple[str, str]:
    """Return the name of the MPI library that mpi4py opens here and "", or "" and the reason why there is none.

    Another process opens the library, because that may crash.
    """
    if not is_installed():
        return "", "mpi4py is not installed"
    try:
        done = subprocess.run([sys.executable, *program_arguments(_LOOK)], capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "", "mpi4py does not come back from opening MPI"
    if done.returncode == 0:
        return done.stdout.strip(), ""
    said = done.stderr.strip().splitlines()
    return "", f"mpi4py finds no MPI: {said[-1] if said else f'exit code {done.returncode}'}"


def load(threads: bool = True) -> Any:
    """Return mpi4py's MPI, initialised. Raise ImportError or RuntimeError if mpi4py is missing or finds no library."""
    global _loaded_in
    if "mpi4py.MPI" not in sys.modules:
        import mpi4py

        mpi4py.rc.finalize = False
        if not threads:
            mpi4py.rc.thread_level = "serialized"
        from mpi4py import MPI

        _loaded_in = os.getpid()
        return MPI
    from mpi4py import MPI

    return MPI


def started_by_mpi(topology: Topology, environ: Mapping[str, str]) -> bool:
    return topology.source in ("Open MPI", "PMI") or (topology.source == "Slurm" and "PMIX_RANK" in environ)


def unusable(topology: Topology, environ: Mapping[str, str], threads: bool = True) -> str:
    """Return why MPI cannot move data between the ranks of this job; empty if it can."""
    if not started_by_mpi(topology, environ):
        return "mpirun did not start this process"
    if _broken:
        return "MPI cannot be used any more since a rank was lost"
    try:
        mpi = load(threads)
    except (ImportError, RuntimeError) as error:
        return f"mpi4py cannot be used ({error}): pip install 'khorovod[mpi]' with the MPI that started this job"
    world = mpi.COMM_WORLD
    if (world.Get_rank(), world.Get_size()) != (topology.rank, topology.size):
        return (
            f"{topology.source} says rank {topology.rank} of {topology.size}, but mpi4py says rank {world.Get_rank()} "
            f"of {world.Get_size()}: it belongs to another MPI ({mpi.get_vendor()[0]}) than this job"
        )
    if mpi.Query_thread() < mpi.THREAD_SERIALIZED:
        return "MPI was initialised for one thread only: let mpi4py initialise it, or ask for THREAD_MULTIPLE"
    return ""


def give_up() -> None:
    """Record that calls of MPI may hang from now on, because a rank is lost or an operation has not ended."""
    global _broken
    _broken = True


def end() -> None:
    """Finalize MPI if this module loaded it. Called at the end of the process, after all worlds have ended."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not hasattr(mpi, "Is_initialized") or not mpi.Is_initialized() or mpi.Is_finalized():
        return
    ours = _loaded_in == os.getpid()
    if ours and not _broken:
        mpi.Finalize()
    elif _broken and _loaded_in is None:
        # mpi4py would finalize MPI, and wait for ranks that are lost. MPI_Abort would also end the other surviving
        # ranks, which may still have work to do.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
