# SPDX-License-Identifier: Apache-2.0
"""Agents on the nodes of a Slurm allocation: one step on each node, with everything that the job has on that node."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress

from horovod.launcher.remote.command import without_variables
from horovod.launcher.start.allocation import expand_names
from horovod.launcher.start.worker_environment import names_devices

# What sbatch and salloc were told about the job's tasks, and srun would take to be meant for the one that is an agent.
_OF_TASKS = (
    *("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_CPUS_PER_GPU", "SLURM_TRES_PER_TASK", "SLURM_DISTRIBUTION"),
    *("SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_CORE", "SLURM_NTASKS_PER_SOCKET", "SLURM_NTASKS_PER_GPU"),
    *("SLURM_NTASKS_PER_TRES", "SLURM_EXACT", "SLURM_EXCLUSIVE", "SLURM_GPU_BIND", "SLURM_CPU_BIND", "SLURM_HINT"),
)
# GPUs that were not asked for node by node: a step on one node does not get that node's by itself.
_OF_WHOLE_JOB = ("SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_GPUS_PER_SOCKET")
_SCONTROL_LIMIT_S = 10.0
_NODES_LINE = re.compile(r"^\s*Nodes=(\S+) .*GRES=(\S+)", re.MULTILINE)
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,()]+)*?:([0-9]+)(?=[(,]|$)")


def srun_command(host: str, agent: list[str], environ: Mapping[str, str], gpus: Mapping[str, int]) -> list[str]:
    """`gpus`: on each node, as far as that must be said."""
    # The launcher's GPUs are not this node's. A Slurm that manages GPUs names those of the node to the agent itself.
    unset = [*(name for name in (*_OF_TASKS, *_OF_WHOLE_JOB) if name in environ), *filter(names_devices, environ)]
    # One task beside whatever else runs there; not bound to some of the job's cores, which the workers share.
    flags = ["--nodes=1", "--ntasks=1", "--overlap", "--cpu-bind=none", "--unbuffered", "--input=0"]
    asked = [f"--gpus-per-node={gpus[host]}"] if gpus.get(host) else []
    return without_variables(unset, ["srun", f"--nodelist={host}", *flags, *asked, *agent])


def gpus_to_ask_for(environ: Mapping[str, str]) -> dict[str, int]:
    """By node; empty if each step gets them without being asked, or if Slurm does not tell."""
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
    """From scontrol's lines such as `Nodes=n[1-2] CPU_IDs=0-3 Mem=0 GRES=gpu:a100:4(IDX:0-3)`. Pure."""
    found: dict[str, int] = {}
    for nodes, resources in _NODES_LINE.findall(text):
        count = sum(map(int, _GPUS.findall(resources)))
        for node in expand_names(nodes):
            found[node] = found.get(node, 0) + count
    return found
