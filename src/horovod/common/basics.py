# SPDX-License-Identifier: Apache-2.0
"""Questions that every framework API answers (rank, size, what is built in), as methods over one context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod.common import util
from horovod.common.context import Context, default_context
from horovod.common.lazily import lazily
from horovod.common.process_set import ProcessSet as ProcessSet
from horovod.common.process_set import global_process_set as global_process_set


class HorovodBasics:
    """Horovod's basic functions.

    Horovod's scripts may pass `pkg_path` and further arguments, which name a native library there. They are ignored.
    """

    def __init__(self, pkg_path: str = "", *args: str, context: Context = default_context) -> None:
        self._context = context

    def init(self, comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
        """Meet the other ranks and start the engine.

        Call this once, before any other function that needs ranks. A second call returns at once. A program that was
        started without a launcher is rank 0 of 1.

        Args:
            comm: Ranks of the MPI job that take part, as a list, or a communicator of mpi4py. By default all ranks.
                Elastic jobs do not support it.
            process_sets: List of hvd.ProcessSet to register, equal on all ranks; or 'dynamic', to add and remove sets
                later.

        Raises:
            HorovodInitializationError: The ranks could not meet in time, or they passed different process sets. The
                error is also a ValueError.
            ValueError: A process set contains a rank twice or a rank that does not exist.

        Example:
            >>> import horovod.numpy as hvd  # or horovod.torch, .tensorflow, .keras, .jax, .mxnet
            >>> hvd.init()
        """
        self._context.init(comm, process_sets)

    def shutdown(self) -> None:
        """Leave the other ranks and stop the engine.

        hvd.init() may be called again. Operations that have not completed fail. A call without hvd.init() does nothing.
        A program that ends calls this function itself.

        Example:
            >>> hvd.shutdown()
            >>> hvd.init()  # the ranks meet again
        """
        self._context.shutdown()

    def is_initialized(self) -> bool:
        """Return True between hvd.init() and hvd.shutdown().

        Returns:
            True if the engine is running.

        Example:
            >>> if not hvd.is_initialized():
            ...     hvd.init()
        """
        return self._context.is_initialized

    def start_timeline(self, file_path: str, mark_cycles: bool = False) -> None:
        """Write a timeline of all operations to a file from now on.

        Only rank 0 writes, unless the path contains `%r` (the rank) or HOROVOD_TIMELINE_ALL_RANKS is set. A file that
        cannot be written is logged as a warning. Viewers of Chrome traces show the file.

        Args:
            file_path: The file to write.
            mark_cycles: Mark the engine's cycles in the timeline.

        Raises:
            HorovodNotInitializedError: Call hvd.init() first. The error is also a ValueError.
            ValueError: HOROVOD_TIMELINE is not set; set it to DYNAMIC or to a file.

        Example:
            >>> hvd.start_timeline('timeline.json')
            >>> hvd.stop_timeline()
        """
        context = self._context
        context.timelines.start(context.world, context.settings, context.topology.rank, file_path, mark_cycles)

    def stop_timeline(self) -> None:
        """Finish the timeline that hvd.start_timeline(), or HOROVOD_TIMELINE, began.

        Raises:
            HorovodNotInitializedError: Call hvd.init() first. The error is also a ValueError.
            ValueError: HOROVOD_TIMELINE is not set; set it to DYNAMIC or to a file.

        Example:
            >>> hvd.start_timeline('timeline.json')
            >>> hvd.stop_timeline()
        """
        self._context.timelines.stop(self._context.world, self._context.settings)

    def counters(self) -> dict[str, int | None]:
        """Return how many bytes this process has sent, received and moved through shared memory since it started.

        The counters continue when hvd.init() is called again, also by elastic training. A number never decreases.

        Returns:
            The number of bytes by name. `data_bytes_sent` and `data_bytes_received` count bytes of tensors on TCP
            connections between ranks; they are None after MPI was chosen or NCCL has moved tensors, because these
            libraries do not report bytes. `control_bytes_sent` and `control_bytes_received` count all other bytes on
            these connections, without TCP's headers. `shared_memory_bytes_read` and `shared_memory_bytes_written` count
            bytes that this rank read from memory of other ranks on its host, and wrote straight into their tensors.

        Raises:
            HorovodNotInitializedError: Call hvd.init() first. The error is also a ValueError.

        Example:
            >>> before = hvd.counters()['shared_memory_bytes_read']
            >>> hvd.counters()['shared_memory_bytes_read'] >= before  # on 2 ranks: True
        """
        return self._context.moved_bytes()

    def size(self) -> int:
        """Return the number of ranks of the job.

        Returns:
            The number of ranks, 1 for a program that was started without a launcher.

        Raises:
            HorovodNotInitializedError: Call hvd.init() first. The error is also a ValueError.

        Example:
            >>> share = 1000 // hvd.size()  # samples of each rank
            >>> share  # on 2 ranks: 500
        """
        return self._context.topology.size

    def local_size(self) -> int:
        """Return the number of ranks on this host.

        Returns:
            The number of ranks on this host.

        Raises:
            HorovodNotInitializedError: Call hvd.init() first. The error is also a ValueError.

        Example:
            >>> threads = max(1, 16 // hvd.local_size())  # each rank's share of 16 cores
            >>> print(threads)
        """
        return self._context.topology.local_size

    def cross_size(self) -> int:
        """Return the number of hosts that have a rank with this local rank.

        Returns:
            The number of hosts. If hosts have different numbers of ranks, it differs between local ranks.

        Raises:
            HorovodNotInitializedError: Call hvd.init() first. The error is also a ValueError.

        Example:
            >>> if hvd.cross_size() > 1:
            ...     print('the job uses several hosts')
        """
        return self._context.topology.cross_size

    def rank(self) -> int:
        """Return this process's rank, its number among all ranks of the job.

        Returns:
            A number from 0 to hvd.size() - 1.

        Raises:
            HorovodNotInitializedError: Call hvd.init() first. The error is also a ValueError.

        Example:
            >>> if hvd.rank() == 0:
            ...     print('only one rank prints this')
        """
        return self._context.topology.rank

    def local_rank(self) -> int:
        """Return this process's number among the ranks on its host.

        Returns:
            A number from 0 to hvd.local_size() - 1. Programs often use the GPU of this number.

        Raises:
            HorovodNotInitializedError: Call hvd.init() first. The error is also a ValueError.

        Example:
            >>> device = f'cuda:{hvd.local_rank()}'
            >>> print(device)
        """
        return self._context.topology.local_rank

    def cross_rank(self) -> int:
        """Return the number of this host among the hosts that have a rank with this local rank.

        Returns:
            A number from 0 to hvd.cross_size() - 1.

        Raises:
            HorovodNotInitializedError: Call hvd.init() first. The error is also a ValueError.

        Example:
            >>> if hvd.cross_rank() == 0 and hvd.local_rank() == 0:
            ...     print('first rank of the first host')
        """
        return self._context.topology.cross_rank

    def is_homogeneous(self) -> bool:
        """Return True if every host has the same number of ranks.

        Returns:
            True if every host has the same number of ranks.

        Raises:
            HorovodNotInitializedError: Call hvd.init() first. The error is also a ValueError.

        Example:
            >>> if not hvd.is_homogeneous():
            ...     print('hosts have different numbers of ranks')
        """
        return self._context.is_homogeneous

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        """Return the ranks of each registered set, by the set's id."""
        return self._context.registered_sets.ranks_by_id()

    def mpi_threads_supported(self) -> bool:
        """Return True if the program's own threads may call MPI.

        Returns:
            True if MPI supports calls from several threads.

        Raises:
            ValueError: MPI does not move tensors in this job.

        Example:
            >>> if hvd.mpi_enabled():
            ...     print(hvd.mpi_threads_supported())
        """
        plane = self._context.mpi.plane
        if plane is None:
            raise ValueError(
                "MPI is not enabled: tensors do not travel by MPI. Start with horovodrun --mpi, or with mpirun and "
                "HOROVOD_CPU_OPERATIONS=mpi"
            )
        return plane.takes_threads

    def mpi_enabled(self) -> bool:
        """Return True if tensors travel by MPI in this job.

        Returns:
            True after hvd.init() in a job that moves tensors by MPI.

        Example:
            >>> if hvd.mpi_enabled():
            ...     print('tensors travel by MPI')
        """
        return self._context.mpi.plane is not None

    def mpi_built(self) -> bool:
        """Return True if MPI can be used in jobs that mpirun starts.

        Returns:
            True if mpi4py is installed.

        Example:
            >>> if not hvd.mpi_built():
            ...     print('install mpi4py to use MPI')
        """
        return util.mpi_built()

    def gloo_enabled(self) -> bool:
        """Return True if tensors travel by shared memory and TCP, without MPI.

        Scripts written for Horovod ask for Gloo, whose place the engine takes.

        Returns:
            True unless hvd.mpi_enabled().

        Example:
            >>> hvd.gloo_enabled() != hvd.mpi_enabled()  # on 2 ranks: True
        """
        return not self.mpi_enabled()

    def gloo_built(self) -> bool:
        """Return True, because the engine needs no MPI.

        Scripts written for Horovod ask for Gloo, whose place the engine takes.

        Returns:
            True.

        Example:
            >>> hvd.gloo_built()  # on 2 ranks: True
        """
        return util.gloo_built()

    def nccl_built(self) -> int:
        """Return the version number of the installed NCCL library.

        Returns:
            The version as a number, for example 22809 for 2.28.9, or 0 if NCCL is not installed.

        Example:
            >>> if hvd.nccl_built() >= 21000:
            ...     print('NCCL 2.10 or newer')
        """
        return util.nccl_built()

    def ddl_built(self) -> bool:
        """Return False, because the engine does not use IBM DDL.

        Returns:
            False.

        Example:
            >>> hvd.ddl_built()  # on 2 ranks: False
        """
        return util.ddl_built()

    def ccl_built(self) -> bool:
        """Return False, because the engine does not use oneCCL.

        Returns:
            False.

        Example:
            >>> hvd.ccl_built()  # on 2 ranks: False
        """
        return util.ccl_built()

    def cuda_built(self) -> bool:
        """Return False, because the engine loads CUDA when a program uses it, instead of being built with it.

        Returns:
            False, also where tensors on a GPU are supported.

        Example:
            >>> hvd.cuda_built()  # on 2 ranks: False
        """
        return False

    def rocm_built(self) -> bool:
        """Return False, because the engine does not use ROCm.

        Returns:
            False.

        Example:
            >>> hvd.rocm_built()  # on 2 ranks: False
        """
        return False


# MPI is mpi4py's if mpi4py is installed, else a class in its place.
__getattr__ = lazily(__name__, {"MPI": "horovod.common.mpi:MPI"})
