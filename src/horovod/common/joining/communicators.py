# SPDX-License-Identifier: Apache-2.0
"""MPI communicators: hvd.init(comm=...) for a communicator or a list of ranks, and process sets from communicators."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from horovod.common import mpi_library
from horovod.common.exceptions import HorovodInitializationError
from horovod.common.topology import Topology

_LOOK_AGAIN_S = 0.005


def communicator_of(comm: Any, topology: Topology, environ: Mapping[str, str], timeout_s: float) -> Any:
    """Return the communicator of a world that is not all ranks; None for all ranks.

    Raise ValueError for a bad `comm`.
    """
    if comm is None or (isinstance(comm, Sequence) and list(comm) in ([], list(range(topology.size)))):
        return None
    if not hasattr(comm, "Get_rank") and not isinstance(comm, Sequence):
        raise ValueError(f"hvd.init(comm={comm!r}): comm must be a list of ranks or a communicator of mpi4py")
    why_not = mpi_library.unusable(topology, environ)
    if why_not:
        raise ValueError(
            f"hvd.init(comm={comm!r}): an MPI communicator or a subset of the ranks needs MPI, but {why_not}. "
            "Start only the ranks you want, or use process sets."
        )
    mpi = mpi_library.load()
    if isinstance(comm, Sequence):
        return _of_ranks(mpi, [int(rank) for rank in comm], topology, timeout_s)
    if comm == mpi.COMM_NULL or comm.Is_inter():
        raise ValueError(f"hvd.init(comm={comm!r}): pass an intracommunicator that this process is a member of")
    same = mpi.Comm.Compare(comm, mpi.COMM_WORLD) in (mpi.IDENT, mpi.CONGRUENT)
    return None if same else comm


def passed_communicator(comm: Any) -> Any:
    """Return the communicator that was passed to hvd.init(comm=...); None for a list of ranks or no argument."""
    return comm if hasattr(comm, "Get_rank") else None


def _of_ranks(mpi: Any, ranks: list[int], topology: Topology, timeout_s: float) -> Any:
    if topology.rank not in ranks:
        raise ValueError(
            f"hvd.init(comm={ranks}): this is rank {topology.rank}, which is not among them: only the ranks of the "
            "list call hvd.init()"
        )
    if len(set(ranks)) != len(ranks) or not all(0 <= rank < topology.size for rank in ranks):
        raise ValueError(f"hvd.init(comm={ranks}): the ranks must differ and be from 0 to {topology.size - 1}")
    made: list[Any] = []
    group = mpi.COMM_WORLD.Get_group().Incl(ranks)
    # Create_group waits for all these ranks and has no timeout, so it runs in a thread.
    maker = threading.Thread(target=lambda: made.append(mpi.COMM_WORLD.Create_group(group)), daemon=True)
    maker.start()
    maker.join(timeout_s)
    if not made:
        mpi_library.give_up()
        raise HorovodInitializationError(
            f"hvd.init(comm={ranks}) failed on rank {topology.rank}: not all of these ranks called it within "
            f"{timeout_s:g} s"
        )
    return made[0]


def place_in(comm: Any, topology: Topology) -> Topology:
    """Return the topology with rank and size in the communicator. Local numbers follow when the ranks meet."""
    rank, size = int(comm.Get_rank()), int(comm.Get_size())
    return replace(
        topology, rank=rank, size=size, local_rank=0, local_size=1, cross_rank=rank, cross_size=size,
        local_given=False, cross_given=False,
    )  # fmt: skip


def latest_generation(comm: Any, generation: int, timeout_s: float) -> int:
    """Return the highest generation number among the communicator's ranks.

    The ranks may have initialised before with other ranks, so their counts may differ.
    """
    from array import array

    mpi = mpi_library.load()
    latest = array("q", [generation])
    request = comm.Iallreduce(mpi.IN_PLACE, [latest, mpi.INT64_T], mpi.MAX)
    deadline = time.monotonic() + timeout_s
    while not request.Test():
        if time.monotonic() > deadline:
            mpi_library.give_up()
            raise HorovodInitializationError(
                f"hvd.init(comm=...) failed: not all {comm.Get_size()} ranks of the communicator called it within "
                f"{timeout_s:g} s"
            )
        time.sleep(_LOOK_AGAIN_S)
    return latest[0]


def check_mpi(base: Any, topology: Topology, environ: Mapping[str, str]) -> None:
    """Raise ValueError if a process set cannot be made from a communicator. All ranks of the job raise, or none."""
    if why_not := mpi_library.unusable(topology, environ) if base is None else "":
        raise ValueError(f"A process set made from an MPI communicator needs MPI, but {why_not}. Pass a list of ranks.")


def ranks_in(comm: Any, base: Any) -> list[int]:
    """Return the members of a process set's communicator as ranks of the world; none for COMM_NULL."""
    mpi = mpi_library.load()
    if comm == mpi.COMM_NULL:
        return []
    group = comm.Get_group()
    world = (base if base is not None else mpi.COMM_WORLD).Get_group()
    ranks = mpi.Group.Translate_ranks(group, None, world)
    if mpi.UNDEFINED in ranks:
        raise NotInWorldError("A process set's communicator has members that are not ranks of this world")
    return sorted(int(rank) for rank in ranks)


class NotInWorldError(ValueError):
    """Error for a communicator that contains processes that are not ranks of this world.

    Only this rank sees the error, so it is sent to the other ranks.
    """


def members_or_refusal(find: Callable[[], list[int]]) -> tuple[int, ...] | str:
    """Return this rank's members, or the error text, to send to the other ranks.

    Errors are sent too, so that no rank waits for this one.
    """
    try:
        return tuple(find())
    except NotInWorldError as error:
        return str(error)


def all_sets(told: Sequence[tuple[int, ...] | str]) -> list[tuple[int, ...]]:
    """Return the sets that all ranks register, from what each rank has sent. Every rank computes an equal result."""
    for rank, one in enumerate(told):
        if isinstance(one, str):
            raise ValueError(f"hvd.add_process_set() failed: rank {rank} reports: {one}")
    return [one for one in dict.fromkeys(told) if one and not isinstance(one, str)]
