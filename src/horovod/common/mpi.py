# SPDX-License-Identifier: Apache-2.0
"""mpi4py's MPI for those who look for it in our modules. Importing this initialises MPI where mpi4py is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    MPI: Any
else:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # not installed, or no library of MPI that it fits

        class MPI:
            """In place of mpi4py's: nothing is one of its communicators."""

            class Comm: ...
