# SPDX-License-Identifier: Apache-2.0
"""Values that Horovod programs read from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

from horovod.common.topology import integer_of
from horovod.launcher.start.worker_environment import is_exportable

__all__ = ["KUBEFLOW_MPI_EXEC", "LOG_LEVEL_STR", "get_env_rank_and_size", "is_exportable", "is_kubeflow_mpi"]

LOG_LEVEL_STR = ["FATAL", "ERROR", "WARNING", "INFO", "DEBUG", "TRACE"]
KUBEFLOW_MPI_EXEC = "/etc/mpi/kubexec.sh"

_PAIRS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def get_env_rank_and_size() -> tuple[int, int]:
    """Return rank and size as the launcher set them, even before hvd.init(); (0, 1) without a launcher."""
    for rank, size in _PAIRS:
        if os.environ.get(rank) and os.environ.get(size):
            return integer_of(rank, os.environ), integer_of(size, os.environ)
    return 0, 1


def is_kubeflow_mpi(env: Mapping[str, str] | None = None) -> bool:
    return (os.environ if env is None else env).get("OMPI_MCA_plm_rsh_agent") == KUBEFLOW_MPI_EXEC
