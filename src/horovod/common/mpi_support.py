# SPDX-License-Identifier: Apache-2.0
"""MPI in one context: the communicator from which its world is made, and the thread that moves tensors by MPI."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from horovod._engine import World
from horovod.common import mpi_library
from horovod.common.joining import communicators
from horovod.common.settings import Settings
from horovod.common.topology import Topology

if TYPE_CHECKING:
    from horovod.common.mpi_plane import Plane


class MpiSupport:
    """Use of MPI by one context.

    Attributes:
        comm: The communicator from which the world was made, or None.
        plane: The thread that moves tensors by MPI; None if MPI does not move tensors.
    """

    def __init__(self) -> None:
        self.comm: Any = None
        self.plane: Plane | None = None
        # Generation of the last world made from a communicator; ranks outside it have not counted that world.
        self._generation = -1

    def prepare(self, comm: Any, topology: Topology, settings: Settings) -> tuple[str | None, Topology]:
        """Find the communicator from which to make the world, if any.

        Return the value of `bootstrap.Wishes.mpi` (why MPI cannot be used, empty if it can, None if MPI is not wanted),
        and the topology in the communicator.
        """
        wants_mpi = str(settings.text("HOROVOD_CPU_OPERATIONS")).lower() == "mpi"
        threads = not settings.flag("HOROVOD_MPI_THREADS_DISABLE")
        mpi = mpi_library.unusable(topology, os.environ, threads) if wants_mpi else None
        self.comm = None
        if comm is not None:
            timeout_s = settings.number("HOROVOD_GLOO_TIMEOUT_SECONDS")
            self.comm = communicators.communicator_of(comm, topology, os.environ, timeout_s)
            if self.comm is not None:
                topology = communicators.place_in(self.comm, topology)
        return mpi, topology

    def next_generation(self, timeout_s: float) -> int:
        """Return the number of the communicator's next world, on which its ranks agree."""
        return communicators.latest_generation(self.comm, self._generation + 1, timeout_s)

    def note_generation(self, generation: int) -> None:
        self._generation = generation

    def ranks_in(self, comm: Any, topology: Topology) -> list[int]:
        """Return the members of a process set's communicator as ranks of the world; none for COMM_NULL."""
        communicators.check_mpi(self.comm, topology, os.environ)
        find = partial(communicators.ranks_in, comm, self.comm)
        return find() if self.plane is None else self.plane.call(find)

    def start_plane(self, world: World) -> None:
        from horovod.common.mpi_plane import Plane  # imported late because few programs need it

        self.plane = Plane(world, self.comm if self.comm is not None else mpi_library.load().COMM_WORLD)

    def forget_plane(self) -> Plane | None:
        """Return the thread, which no caller can use any more."""
        plane, self.plane = self.plane, None
        return plane
