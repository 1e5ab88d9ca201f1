# SPDX-License-Identifier: Apache-2.0
"""Horovod's functions for flags, config files and variables, on top of the table of settings."""

from __future__ import annotations

from collections.abc import Container, Mapping, MutableMapping
from typing import Any

from horovod.common.settings_table import TABLE
from horovod.common.settings_values import parse
from horovod.launcher.arguments import is_negative
from horovod.launcher.options import FLAG_SETTINGS, JobOptions
from horovod.launcher.start.worker_environment import flag_environment

HOROVOD_FUSION_THRESHOLD = "HOROVOD_FUSION_THRESHOLD"
HOROVOD_CYCLE_TIME = "HOROVOD_CYCLE_TIME"
HOROVOD_CACHE_CAPACITY = "HOROVOD_CACHE_CAPACITY"
HOROVOD_HIERARCHICAL_ALLREDUCE = "HOROVOD_HIERARCHICAL_ALLREDUCE"
HOROVOD_HIERARCHICAL_ALLGATHER = "HOROVOD_HIERARCHICAL_ALLGATHER"
HOROVOD_TORUS_ALLREDUCE = "HOROVOD_TORUS_ALLREDUCE"
HOROVOD_AUTOTUNE = "HOROVOD_AUTOTUNE"
HOROVOD_AUTOTUNE_LOG = "HOROVOD_AUTOTUNE_LOG"
HOROVOD_AUTOTUNE_WARMUP_SAMPLES = "HOROVOD_AUTOTUNE_WARMUP_SAMPLES"
HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE = "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE"
HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES = "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES"
HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE = "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE"
HOROVOD_TIMELINE = "HOROVOD_TIMELINE"
HOROVOD_TIMELINE_MARK_CYCLES = "HOROVOD_TIMELINE_MARK_CYCLES"
HOROVOD_STALL_CHECK_DISABLE = "HOROVOD_STALL_CHECK_DISABLE"
HOROVOD_STALL_CHECK_TIME_SECONDS = "HOROVOD_STALL_CHECK_TIME_SECONDS"
HOROVOD_STALL_SHUTDOWN_TIME_SECONDS = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
HOROVOD_MPI_THREADS_DISABLE = "HOROVOD_MPI_THREADS_DISABLE"
HOROVOD_NUM_NCCL_STREAMS = "HOROVOD_NUM_NCCL_STREAMS"
HOROVOD_THREAD_AFFINITY = "HOROVOD_THREAD_AFFINITY"
HOROVOD_GLOO_TIMEOUT_SECONDS = "HOROVOD_GLOO_TIMEOUT_SECONDS"
HOROVOD_LOG_LEVEL = "HOROVOD_LOG_LEVEL"
HOROVOD_LOG_HIDE_TIME = "HOROVOD_LOG_HIDE_TIME"
NCCL_IB_DISABLE = "NCCL_IB_DISABLE"
LOG_LEVELS = next([level.upper() for level in row.choices] for row in TABLE if row.name == HOROVOD_LOG_LEVEL)


def set_args_from_config(args: Any, config: Mapping[str, Any], override_args: Container[str]) -> None:
    """Set the values of a parsed config file as attributes of `args`, except for flags that were given."""
    controller = config.get("controller")
    if controller is not None and str(controller).lower() not in ("gloo", "mpi"):
        raise ValueError(f"controller must be one of gloo, mpi, not {controller!r}")
    if controller is not None and not any(name in override_args for name in ("use_gloo", "use_mpi")):
        setattr(args, f"use_{str(controller).lower()}", True)
    for dest, setting in FLAG_SETTINGS.items():
        section, _, key = (setting.yaml_key or "").partition(".")
        value = (config.get(section) or {}).get(key)
        if value is not None and dest not in override_args:
            setattr(args, dest, not value if setting.type is bool and is_negative(setting.flag or "") else value)


def validate_config_args(args: Any) -> None:
    """Raise ValueError for a value that its setting does not accept."""
    for dest, setting in FLAG_SETTINGS.items():
        value = getattr(args, dest, None)
        if value is not None and setting.type is not bool:
            parse(setting.given_as(setting.flag or ""), str(value))


def set_env_from_args(env: MutableMapping[str, str], args: Any) -> MutableMapping[str, str]:
    """Add the variables for the flags in `args`."""
    env.update(flag_environment(JobOptions.of(vars(args))))
    return env
