# SPDX-License-Identifier: Apache-2.0
"""Detection of the installed mpirun. `horovodrun --mpi` starts jobs through it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

_LIMIT_S = 30
_NAMES = {
    "Spectrum MPI": ("IBM Spectrum MPI",),  # first, because it is based on Open MPI and mentions it
    "Open MPI": ("Open MPI", "OpenRTE"),
    "MPICH": ("MPICH", "HYDRA"),
    "Intel MPI": ("Intel(R) MPI",),
}


def mpi_available(env: Mapping[str, str] | None = None) -> bool:
    return installed_mpi(env) is not None


def is_open_mpi(env: Mapping[str, str] | None = None) -> bool:
    return installed_mpi(env) == "Open MPI"


def is_spectrum_mpi(env: Mapping[str, str] | None = None) -> bool:
    return installed_mpi(env) == "Spectrum MPI"


def is_mpich(env: Mapping[str, str] | None = None) -> bool:
    return installed_mpi(env) == "MPICH"


def is_intel_mpi(env: Mapping[str, str] | None = None) -> bool:
    return installed_mpi(env) == "Intel MPI"


def installed_mpi(env: Mapping[str, str] | None) -> str | None:
    """Return the MPI that mpirun belongs to, or None if there is no mpirun or its MPI is unknown."""
    environ = os.environ if env is None else {"PATH": os.environ.get("PATH", os.defpath), **env}
    try:
        done = subprocess.run(
            ["mpirun", "--version"],
            env=dict(environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    text = done.stdout.decode(errors="replace")
    return next((name for name, signs in _NAMES.items() if any(sign in text for sign in signs)), None)
