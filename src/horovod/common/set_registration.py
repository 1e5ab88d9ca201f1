# SPDX-License-Identifier: Apache-2.0
"""Registration and removal of process sets, which all ranks of a world do together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from horovod._engine import EngineCall, EngineError, TensorLocation
from horovod.common import log
from horovod.common.calls import ADD_PROCESS_SET, REMOVE_PROCESS_SET
from horovod.common.dtypes import UINT8
from horovod.common.elastic_sets import Heritage, Word, agree
from horovod.common.handles import HandleTable, Pending, translate
from horovod.common.joining.bootstrap import Started
from horovod.common.membership import EmptyMembership
from horovod.common.mpi_support import MpiSupport
from horovod.common.process_set import ProcessSet, check_ranks
from horovod.common.registered_sets import RegisteredSets
from horovod.common.settings import Settings
from horovod.common.topology import Topology


class SetRegistration:
    """Process sets that a context's ranks register together, in one world after the other."""

    def __init__(
        self,
        global_set: ProcessSet,
        table: RegisteredSets,
        handles: HandleTable,
        heritage: Heritage,
        mpi: MpiSupport,
        running: Callable[[], Started],
    ) -> None:
        """Prepare for the worlds to come.

        Args:
            global_set: The set of all ranks.
            table: The registered sets.
            handles: The context's operations in flight.
            heritage: The sets of earlier generations of an elastic job.
            mpi: MPI, for sets that are made from communicators.
            running: Returns the present world; raises HorovodNotInitializedError if there is none.
        """
        self._global_set = global_set
        self._table = table
        self._handles = handles
        self._heritage = heritage
        self._mpi = mpi
        self._running = running
        self._is_dynamic = False

    def choose(self, process_sets: Sequence[ProcessSet] | str | None, settings: Settings) -> None:
        """Note whether sets may change while the job runs."""
        self._is_dynamic = process_sets == "dynamic" or settings.flag("HOROVOD_DYNAMIC_PROCESS_SETS")

    def check_static(
        self, argument: object, static_sets: list[ProcessSet], topology: Topology
    ) -> list[tuple[int, ...]]:
        """Return the ranks of the sets passed to hvd.init(). Raise ValueError if they cannot be registered."""
        if isinstance(argument, str) and argument != "dynamic":
            raise ValueError(f"process_sets must be a list of ProcessSet or 'dynamic', not {argument!r}")
        ranks: list[tuple[int, ...]] = []
        for process_set in static_sets:
            if process_set is self._global_set:
                raise ValueError("process_sets contains the global process set, which always exists")
            checked = check_ranks(self.ranks_of(process_set, topology), topology.size)
            if (process_set.mpi_comm is None and checked in ranks) or len(checked) == topology.size:
                raise ValueError(
                    f"process_sets contains the same ranks twice: {list(checked)} (the set of all ranks always exists)"
                )
            ranks.append(checked)
        return ranks

    def ranks_of(self, process_set: ProcessSet, topology: Topology) -> list[int]:
        if process_set.mpi_comm is None:
            return process_set.ranks or []
        return self._mpi.ranks_in(process_set.mpi_comm, topology)

    def begin(self, started: Started) -> None:
        """Bind the set of all ranks in a new world."""
        self._bind(started, self._global_set, 0, tuple(range(started.topology.size)))

    def register_first(
        self, started: Started, generation: int, static_sets: list[ProcessSet], ranks: list[tuple[int, ...]]
    ) -> None:
        """Register the sets of earlier generations, then those that the ranks have passed to hvd.init()."""
        if started.heritages:
            self._inherit(started, generation, static_sets)
        mine = dict(zip(ranks, static_sets, strict=False))
        for members in started.process_sets:
            self._register(mine.get(members) or ProcessSet(members), members, by_init=True)

    def _inherit(self, started: Started, generation: int, passed: Sequence[ProcessSet]) -> None:
        """Take over the process sets that the job has from earlier generations."""
        agreed = agree([Word.unpacked(found) for found in started.heritages])
        unknown = self._heritage.take(agreed, generation, passed)
        for process_set in [] if agreed.is_first else unknown:
            log.logger.warning(
                "%s was passed to hvd.init(), but the workers that were already in the job have no such set: "
                "it stays unregistered",
                process_set,
            )
        for known, objects, ranks in self._heritage.handed_down():
            if not ranks:
                for process_set in objects:
                    self._table.bind_empty(process_set, EmptyMembership(started.world, known.origin, known.births))
                continue
            self._register(objects[0], ranks, is_new=False)
            for process_set in objects[1:]:
                self._table.bind_beside(process_set, objects[0])

    def forget(self) -> None:
        """Drop all sets, because their world has ended."""
        self._table.drop_all()
        self._global_set.process_set_id, self._global_set.mpi_comm = 0, None

    def require_dynamic(self) -> None:
        """Raise ValueError if process sets cannot change while the job runs."""
        if not self._is_dynamic:
            raise ValueError(
                "Process sets can change while the job runs only if HOROVOD_DYNAMIC_PROCESS_SETS=1 is set on all "
                "ranks, or with hvd.init(process_sets='dynamic')"
            )

    def add(self, added: ProcessSet, ranks: tuple[int, ...]) -> None:
        """Register a set on all ranks at once. Every rank of the job must call this."""
        for set_id, existing, its_ranks in self._table.with_ranks():
            if its_ranks == ranks:
                if self._heritage.adopts(existing, added):
                    self._table.adopt(set_id, added)
                    return
                raise ValueError(f"A process set with ranks {list(ranks)} already exists: {existing}")
            if existing is added:
                raise ValueError(f"{existing} is registered already, with other ranks: make a new hvd.ProcessSet")
        self._register(added, ranks)

    def own(self, ranks: Sequence[int]) -> ProcessSet:
        """Return a set with these ranks for this package's own use. Every rank of the job must call this.

        Process sets need not be dynamic. A set that this method registers ends with the world.
        """
        for _, existing, its_ranks in self._table.with_ranks():
            if its_ranks == tuple(ranks):
                return existing
        added = ProcessSet(ranks)
        self._register(added, check_ranks(ranks, self._running().topology.size), is_new=False)
        return added

    def remove(self, process_set: ProcessSet) -> bool:
        """Remove a set on all ranks at once. Return False for the global set and for a set that is not registered."""
        set_id = process_set.process_set_id
        if not set_id or self._table.named_by(process_set) is None:
            return False
        self._heritage.removed(self._table.tell_unbound(set_id))
        self._table.drop(set_id, process_set)
        self._run_on_all(REMOVE_PROCESS_SET, f"remove_process_set.{set_id}", (set_id,))
        return True

    def _register(
        self, process_set: ProcessSet, ranks: tuple[int, ...], by_init: bool = False, is_new: bool = True
    ) -> None:
        name = "add_process_set." + ",".join(map(str, ranks))
        set_id = self._run_on_all(ADD_PROCESS_SET, name, ranks)
        self._bind(self._running(), process_set, set_id, ranks)
        if is_new:
            self._heritage.made(process_set, ranks, by_init)

    def _bind(self, started: Started, process_set: ProcessSet, set_id: int, ranks: tuple[int, ...]) -> None:
        self._table.bind(process_set, started.world, set_id, ranks, started.topology.rank)

    def _run_on_all(self, kind: int, name: str, numbers: tuple[int, ...]) -> int:
        world = self._running().world
        try:
            handle = world.submit(0, name, EngineCall(kind, will_wait=True), TensorLocation(UINT8, ()), numbers)
        except EngineError as error:
            raise translate(error, name) from None
        value = self._handles.finish(Pending(world, handle, name, None, None, lambda it: world.value(it.handle)))
        assert isinstance(value, int)
        return value
