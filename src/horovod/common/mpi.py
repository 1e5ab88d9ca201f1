# SPDX-License-Identifier: Apache-2.0
"""mpi4py's MPI under our module names. If mpi4py is installed, importing this module initialises MPI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    MPI: Any
else:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # mpi4py is not installed, or finds no MPI library that fits

        class MPI:
            """Replacement for mpi4py's MPI. No object is an instance of its Comm."""

            class Comm: ...
