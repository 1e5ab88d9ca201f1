# SPDX-License-Identifier: Apache-2.0
"""Selection of the launcher's variables that are sent to another host. Pure functions only."""

from __future__ import annotations

from collections.abc import Mapping

from horovod.launcher.start.worker_environment import names_devices

# Variables that describe one host. On another host its own values are right.
_OF_ONE_HOST = frozenset(
    ("HOME", "HOSTNAME", "LOGNAME", "MAIL", "OLDPWD", "PWD", "SHELL", "SHLVL", "TERM", "TMPDIR", "USER", "_",
     "DISPLAY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS", "KRB5CCNAME", "WINDOWID", "TTY", "GPG_TTY",
     "SLURMD_NODENAME", "SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS", "SLURM_TASK_PID",
     "SLURM_CPUS_ON_NODE", "SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS")
)  # fmt: skip
_OF_ONE_HOST_PREFIXES = ("SSH_", "XDG_", "SLURM_STEP", "SLURM_TOPOLOGY_ADDR", "SLURM_CPU_BIND", "SLURM_MEM_BIND")
# In a Slurm job with GPUs, these list the GPUs of one node.
_GPUS_OF_ONE_NODE = frozenset(("ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"))
_SLURMS_GPUS = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS")


def that_travel(environ: Mapping[str, str]) -> dict[str, str]:
    of_one_host = _OF_ONE_HOST
    if any(name in environ for name in _SLURMS_GPUS):
        of_one_host |= _GPUS_OF_ONE_NODE
    return {
        name: value
        for name, value in environ.items()
        if name not in of_one_host and not name.startswith(_OF_ONE_HOST_PREFIXES) and not names_devices(name)
    }
