# SPDX-License-Identifier: Apache-2.0
"""Tensors transferred by MPI, with the real mpirun of Open MPI and MPICH."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest
from launcherkit import mpi
from testkit.awaiting import await_that
from testkit.processes import run

pytestmark = pytest.mark.timeout(150)

PROGRAM = Path(__file__).with_name("programs") / "mpi_plane.py"
# Flags that keep mpirun from ending the survivors of a lost rank, so that they end by themselves.
PATIENT = {
    "openmpi": ["--map-by", ":OVERSUBSCRIBE", "--runtime-options", "recoverable"],
    "mpich": ["-disable-auto-cleanup"],
}
RANKS = 4
# MPICH may kill the survivors when the first of them has ended, or sooner, so possibly none can report an error.
LEAST_TOLD = {"openmpi": 3, "mpich": 0}


def told_by_survivors(folder: Path, shown: str) -> dict[str, str]:
    """Wait until all processes have ended; return the error that each survivor reported, by file name."""
    pids = [int(file.read_text()) for file in folder.glob("pid.*")]
    assert len(pids) == RANKS, shown
    await_that(lambda: not any(psutil.pid_exists(pid) for pid in pids), 15, lambda: shown)
    return {file.name: file.read_text() for file in folder.glob("told.*")}


@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_all_that_travels_by_mpi_and_a_lost_rank_by_name(name: str, tmp_path: Path):
    library = mpi.install(name)
    trace = tmp_path / "trace.json"
    env = library.environment() | {
        "XDG_RUNTIME_DIR": str(tmp_path),
        "HOROVOD_CPU_OPERATIONS": "MPI",
        "HOROVOD_DYNAMIC_PROCESS_SETS": "1",
        "HOROVOD_LOG_LEVEL": "info",
        "HOROVOD_TIMELINE": str(trace),
    }
    begun = time.monotonic()
    done = run(
        [library.mpirun, *PATIENT[name], "-np", str(RANKS), sys.executable, str(PROGRAM), str(tmp_path)],
        env,
        limit_s=100,
    )
    shown = f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}\n{time.monotonic() - begun:.1f} s"
    assert done.returncode != 0, shown
    told = told_by_survivors(tmp_path, shown)
    assert len(told) >= LEAST_TOLD[name], shown
    assert all("rank 3" in text for text in told.values()), shown
    for kind in ("ALLREDUCE", "ALLGATHER", "BROADCAST", "ALLTOALL", "REDUCESCATTER"):
        assert done.stdout.count(f"[0] [horovod] INFO: process set 0: {kind} runs on MPI") <= 3, shown
        assert f"process set 0: {kind} runs on MPI" in done.stdout, shown
    assert "process set 0: ALLREDUCE runs on SHM" in done.stdout, shown  # Adasum, and minima of floating-point numbers
    activities = trace.read_text()
    for activity in ("MPI_ALLREDUCE", "MPI_ALLGATHER", "MPI_BCAST", "MPI_ALLTOALL", "MPI_REDUCESCATTER"):
        assert f'"{activity}"' in activities, activity


ONE_THREAD = """
import numpy as np, horovod.numpy as hvd
hvd.init(process_sets="dynamic")
assert (hvd.mpi_enabled(), hvd.gloo_enabled(), hvd.mpi_threads_supported()) == (True, False, False)
from mpi4py import MPI
assert MPI.Query_thread() == MPI.THREAD_SERIALIZED, MPI.Query_thread()
np.testing.assert_array_equal(hvd.allreduce(np.ones(50_000), op=hvd.Sum), np.full(50_000, 2))
assert hvd.add_process_set(MPI.COMM_SELF).ranks == [hvd.rank()]
"""


def test_one_thread_at_a_time_may_call_mpi(tmp_path: Path):
    library = mpi.install("openmpi")
    env = library.environment() | {
        "XDG_RUNTIME_DIR": str(tmp_path),
        "HOROVOD_CPU_OPERATIONS": "MPI",
        "HOROVOD_MPI_THREADS_DISABLE": "1",
    }
    done = run([library.mpirun, *PATIENT["openmpi"], "-np", "2", sys.executable, "-c", ONE_THREAD], env, limit_s=60)
    assert done.returncode == 0, done.stdout + done.stderr


ALONE = "import numpy as np, horovod.numpy as hvd; hvd.init(); print(hvd.mpi_enabled(), hvd.allreduce(np.ones(2)))"


def test_a_value_from_an_old_images_build_is_one_warning(tmp_path: Path):
    from testkit.launcher import HOROVODRUN

    for command in ([sys.executable], [*HOROVODRUN, "-np", "1", sys.executable]):
        done = run([*command, "-c", ALONE], {"HOROVOD_CPU_OPERATIONS": "MPI"})
        assert done.returncode == 0, done.stderr
        assert "False [1. 1.]" in done.stdout
        asked = command == [sys.executable]  # horovodrun sets the variable to gloo for its workers
        assert done.stderr.count("asks for MPI, but collectives run on shared memory and TCP") == asked, done.stderr
