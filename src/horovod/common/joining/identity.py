# SPDX-License-Identifier: Apache-2.0
"""Identity of a job that a foreign launcher started: equal on all its ranks, different from every other job's."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import psutil

from horovod.common.topology import SECRET_VARIABLE, Topology, rank_variable

# Variables that name the job: first of Open MPI 5 and other users of PMIx, then of Slurm's PMI-2, then of Open MPI 4
# and older.
_NAMES = ("PMIX_NAMESPACE", "PMI_JOBID", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid")


def job_identity(topology: Topology, environ: Mapping[str, str]) -> str | None:
    """Return a hexadecimal text that fits into a file's name; None if all ranks share no known value."""
    known = _from_variables(topology, environ)
    if known is None and topology.on_one_host:
        known = _from_launcher_process(topology, environ)
    if known is None and environ.get(SECRET_VARIABLE):  # horovodrun --mpi makes a new secret for each job
        known = f"secret {environ[SECRET_VARIABLE]}"
    return hashlib.sha256(known.encode()).hexdigest()[:32] if known else None


def _from_variables(topology: Topology, environ: Mapping[str, str]) -> str | None:
    # The number of a step distinguishes the jobs in one allocation. mpirun in a batch script has no step of its own.
    step = [environ.get(name, "") for name in ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID")]
    slurm = f"slurm {' '.join(step)}" if step[1] and step[2] else None
    if topology.source == "Slurm":
        return slurm
    named = next((f"{name} {environ[name]}" for name in _NAMES if environ.get(name)), None)
    return named if named or topology.on_one_host else slurm


def _from_launcher_process(topology: Topology, environ: Mapping[str, str]) -> str | None:
    """Return the id of the nearest ancestor that is not a rank itself, such as MPICH's proxy.

    Wrapper scripts between that process and this one have the rank's variables too.
    """
    variable = rank_variable(topology.source)
    for ancestor in psutil.Process().parents():
        try:
            if environ.get(variable) == ancestor.environ().get(variable):
                continue
        except psutil.NoSuchProcess:
            return None
        except psutil.Error:
            pass  # a process of another user is not a rank of this job
        return f"process {ancestor.pid} {ancestor.create_time()}"
    return None
