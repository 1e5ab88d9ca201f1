# SPDX-License-Identifier: Apache-2.0
"""Questions that every framework API answers (rank, size, what is built in), as methods over one context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod.common import util
from horovod.common.context import Context, default_context
from horovod.common.lazily import lazily
from horovod.common.process_sets import ProcessSet as ProcessSet
from horovod.common.process_sets import global_process_set as global_process_set


class HorovodBasics:
    """Horovod's basic functions.

    Horovod's scripts may pass `pkg_path` and further arguments, which name a native library there. They are ignored.
    """

    def __init__(self, pkg_path: str = "", *args: str, context: Context = default_context) -> None:
        self._context = context

    def init(self, comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
        """Meet the other ranks. `process_sets`: sets known from the start, or 'dynamic' to change them later."""
        self._context.init(comm, process_sets)

    def shutdown(self) -> None:
        """Leave the other ranks; hvd.init() may be called again."""
        self._context.shutdown()

    def is_initialized(self) -> bool:
        return self._context.is_initialized

    def start_timeline(self, file_path: str, mark_cycles: bool = False) -> None:
        """Write a timeline to a file from now on (only rank 0 writes); needs HOROVOD_TIMELINE to be set."""
        self._context.start_timeline(file_path, mark_cycles)

    def stop_timeline(self) -> None:
        """Finish the file that start_timeline, or hvd.init(), began."""
        self._context.stop_timeline()

    def counters(self) -> dict[str, int | None]:
        """Return how many bytes this process has sent, received and moved through shared memory since it started.

        The counters go on when hvd.init() is called again, also by elastic training. A number never decreases:

        - `data_bytes_sent`, `data_bytes_received`: bytes of tensors on TCP connections between ranks. None after MPI
          was chosen or NCCL has moved tensors, because these libraries do not report bytes.
        - `control_bytes_sent`, `control_bytes_received`: all other bytes on these connections, without TCP's headers.
        - `shared_memory_bytes_read`, `shared_memory_bytes_written`: bytes that this rank read from memory of other
          ranks on its host, and wrote straight into their tensors.
        """
        return self._context.moved_bytes()

    def size(self) -> int:
        return self._context.topology.size

    def local_size(self) -> int:
        return self._context.topology.local_size

    def cross_size(self) -> int:
        return self._context.topology.cross_size

    def rank(self) -> int:
        return self._context.topology.rank

    def local_rank(self) -> int:
        return self._context.topology.local_rank

    def cross_rank(self) -> int:
        return self._context.topology.cross_rank

    def is_homogeneous(self) -> bool:
        """Whether every host holds the same number of ranks."""
        return self._context.is_homogeneous

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        """Return the ranks of each registered set, by the set's id."""
        return self._context.registered_sets()

    def mpi_threads_supported(self) -> bool:
        """Whether the program's own threads may call MPI; ValueError if MPI moves nothing."""
        plane = self._context.mpi_plane
        if plane is None:
            raise ValueError(
                "MPI is not enabled: tensors do not travel by MPI. Start with horovodrun --mpi, or with mpirun and "
                "HOROVOD_CPU_OPERATIONS=mpi"
            )
        return plane.takes_threads

    def mpi_enabled(self) -> bool:
        """Whether MPI moves tensors, wherever it can."""
        return self._context.mpi_plane is not None

    def mpi_built(self) -> bool:
        return util.mpi_built()

    def gloo_enabled(self) -> bool:
        """Whether tensors travel as where scripts expect Gloo: by shared memory and TCP, not by MPI."""
        return not self.mpi_enabled()

    def gloo_built(self) -> bool:
        return util.gloo_built()

    def nccl_built(self) -> int:
        return util.nccl_built()

    def ddl_built(self) -> bool:
        return util.ddl_built()

    def ccl_built(self) -> bool:
        return util.ccl_built()

    def cuda_built(self) -> bool:
        return False

    def rocm_built(self) -> bool:
        return False


# mpi4py's MPI if mpi4py is installed, else a class in its place.
__getattr__ = lazily(__name__, {"MPI": "horovod.common.mpi:MPI"})
