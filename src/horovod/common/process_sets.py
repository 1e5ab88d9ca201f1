# SPDX-License-Identifier: Apache-2.0
"""Process sets under Horovod's import path: their class, and functions that add and remove them while a job runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from horovod.common.context import default_context
from horovod.common.joining import communicators
from horovod.common.lazily import lazily
from horovod.common.membership import EmptyMembership as EmptyMembership
from horovod.common.membership import Membership as Membership
from horovod.common.process_set import ProcessSet as ProcessSet
from horovod.common.process_set import check_ranks as check_ranks
from horovod.common.process_set import global_process_set as global_process_set
from horovod.common.util import is_iterable as is_iterable

if TYPE_CHECKING:
    from horovod.common.set_registration import SetRegistration


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a process set while the job runs.

    Every rank of the job must call this with the same ranks. Process sets must be dynamic: call
    hvd.init(process_sets='dynamic') or set HOROVOD_DYNAMIC_PROCESS_SETS=1. In jobs that use MPI, each rank may pass the
    communicator of mpi4py that it is in, or COMM_NULL.

    Args:
        process_set: The set, or a list of its ranks.

    Returns:
        The registered set.

    Raises:
        ValueError: Process sets are not dynamic, a set with these ranks exists, or a rank does not exist.
        HorovodNotInitializedError: Call hvd.init() first. The error is also a ValueError.

    Example:
        >>> first = hvd.add_process_set([0])
        >>> hvd.remove_process_set(first)  # on 2 ranks: True
    """
    registration = default_context.set_registration
    registration.require_dynamic()
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if added.mpi_comm is not None and added is not global_process_set:
        _add_by_communicator(registration, added)
    else:
        registration.add(added, check_ranks(added.ranks or [], default_context.topology.size))
    return added


def _add_by_communicator(registration: SetRegistration, added: ProcessSet) -> None:
    """Register the sets of all communicators that ranks pass.

    Ranks may pass different communicators, and each rank knows only its own. So all ranks register all of them.
    """
    from horovod.common.objects import allgather_object  # imported late because few programs need it

    topology = default_context.topology
    mine = communicators.members_or_refusal(lambda: registration.ranks_of(added, topology))
    sets = communicators.all_sets(allgather_object(mine, "add_process_set.by_communicator"))
    # A rank that is a member of no set passes COMM_NULL. The rank can only mean the new set if there is just one.
    meant = mine or (sets[0] if len(sets) == 1 else None)
    for ranks in sets:
        registration.add(added if ranks == meant else ProcessSet(ranks), ranks)


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set while the job runs.

    Every rank of the job must call this. Process sets must be dynamic: call hvd.init(process_sets='dynamic') or set
    HOROVOD_DYNAMIC_PROCESS_SETS=1.

    Args:
        process_set: The set to remove.

    Returns:
        True if the set was removed. False for the set of all ranks and for a set that is not registered.

    Raises:
        ValueError: Process sets are not dynamic.
        HorovodNotInitializedError: Call hvd.init() first. The error is also a ValueError.

    Example:
        >>> first = hvd.add_process_set([0])
        >>> hvd.remove_process_set(first)  # on 2 ranks: True
    """
    registration = default_context.set_registration
    registration.require_dynamic()
    return registration.remove(process_set)


__getattr__ = lazily(
    __name__, {"HorovodBasics": "horovod.common.basics:HorovodBasics", "MPI": "horovod.common.mpi:MPI"}
)
