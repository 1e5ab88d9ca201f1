# SPDX-License-Identifier: Apache-2.0
"""Agents on the nodes of a Slurm allocation: one step on each node, with all resources that the job has there."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress

from horovod.launcher.remote.command import without_variables
from horovod.launcher.start.allocation import expand_names
from horovod.launcher.start.worker_environment import names_devices

# Variables about the job's tasks from sbatch and salloc, which srun would wrongly apply to the task that is an agent.
_OF_TASKS = (
    *("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_CPUS_PER_GPU", "SLURM_TRES_PER_TASK", "SLURM_DISTRIBUTION"),
    *("SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_CORE", "SLURM_NTASKS_PER_SOCKET", "SLURM_NTASKS_PER_GPU"),
    *("SLURM_NTASKS_PER_TRES", "SLURM_EXACT", "SLURM_EXCLUSIVE", "SLURM_GPU_BIND", "SLURM_CPU_BIND", "SLURM_HINT"),
)
# Variables for GPUs that were not requested per node: a step on one node does not get that node's GPUs by default.
_OF_WHOLE_JOB = ("SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_GPUS_PER_SOCKET")
_SCONTROL_LIMIT_S = 10.0
_NODES_LINE = re.compile(r"^\s*Nodes=(\S+) .*GRES=(\S+)", re.MULTILINE)
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,()]+)*?:([0-9]+)(?=[(,]|$)")


def srun_command(host: str, agent: list[str], environ: Mapping[str, str], gpus: Mapping[str, int]) -> list[str]:
    """Return the command that starts an agent on a node.

    Args:
        gpus: Number of GPUs to request on each node, if needed.
    """
    # Unset the launcher's GPUs, which are not this node's. A Slurm that manages GPUs sets the node's for the agent.
    unset = [*(name for name in (*_OF_TASKS, *_OF_WHOLE_JOB) if name in environ), *filter(names_devices, environ)]
    # Run one task beside all others, not bound to some of the job's cores, because the workers share them.
    flags = ["--nodes=1", "--ntasks=1", "--overlap", "--cpu-bind=none", "--unbuffered", "--input=0"]
    asked = [f"--gpus-per-node={gpus[host]}"] if gpus.get(host) else []
    return without_variables(unset, ["srun", f"--nodelist={host}", *flags, *asked, *agent])


def gpus_to_ask_for(environ: Mapping[str, str]) -> dict[str, int]:
    """Return the number of GPUs to request by node.

    The result is empty if each step gets its GPUs without a request, or if Slurm does not tell the number.
    """
    if not any(environ.get(name) for name in _OF_WHOLE_JOB):
        return {}
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            ["scontrol", "--details", "show", "job", environ.get("SLURM_JOB_ID", "")],
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            timeout=_SCONTROL_LIMIT_S,
            check=False,
        )
        return gpus_by_node(done.stdout)
    return {}


def gpus_by_node(text: str) -> dict[str, int]:
    """Parse scontrol's lines such as `Nodes=n[1-2] CPU_IDs=0-3 Mem=0 GRES=gpu:a100:4(IDX:0-3)`."""
    found: dict[str, int] = {}
    for nodes, resources in _NODES_LINE.findall(text):
        count = sum(map(int, _GPUS.findall(resources)))
        for node in expand_names(nodes):
            found[node] = found.get(node, 0) + count
    return found
