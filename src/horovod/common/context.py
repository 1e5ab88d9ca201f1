# SPDX-License-Identifier: Apache-2.0
"""Contexts: a context is this process's part in one world of ranks, from init to shutdown.

The only global object is `default_context`. The module-level functions of the framework APIs call its methods.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from horovod._engine import EngineCall, EngineError, Member, TensorLocation, World
from horovod.common import (
    byte_counters,
    leaving,
    log,
    mpi_library,
    place_variables,
    settings,
    stacks,
    threads_at_exit,
    timeline,
    topology,
    torchrun_variables,
    waits,
)
from horovod.common.calls import ADD_PROCESS_SET, REMOVE_PROCESS_SET
from horovod.common.dtypes import UINT8
from horovod.common.elastic_sets import Heritage, Word, agree
from horovod.common.exceptions import HorovodInitializationError, HorovodInternalError, HorovodNotInitializedError
from horovod.common.handles import HandleTable, Pending, translate
from horovod.common.joining import bootstrap, communicators, elastic_place
from horovod.common.joining.loss import Loss
from horovod.common.lineage import SeenFile, merged
from horovod.common.process_sets import EmptyMembership, Membership, ProcessSet, check_ranks, global_process_set
from horovod.common.registered_sets import Observer, RegisteredSets
from horovod.common.settings import Settings
from horovod.common.topology import Topology

if TYPE_CHECKING:
    from horovod.common.mpi_plane import Plane

_NOT_INITIALIZED = "Horovod has not been initialized; call hvd.init() first."
# Attempts of an elastic worker in one hvd.init(); each failure means that another worker was lost meanwhile.
_MOST_ATTEMPTS = 20
_FORKED = (
    "Horovod was initialized in the parent of this forked process, which cannot take part in collectives. "
    "Call Horovod in the parent only, or start children with the 'spawn' method and call hvd.init() there."
)


class Context:
    """One world as this process sees it.

    Attributes:
        handles: The operations in flight.
        sets: The registered process sets.
        global_set: The process set of all ranks.
    """

    def __init__(self, global_set: ProcessSet | None = None) -> None:
        self.handles = HandleTable()
        self.global_set = global_set if global_set is not None else ProcessSet([])
        self.sets = RegisteredSets()
        self._lock = threading.RLock()
        self._world: World | None = None
        self.mpi_plane: Plane | None = None  # thread that moves tensors by MPI; None if MPI is not used
        self._comm: Any = None  # MPI communicator from which the world was made, or None
        self._topology = Topology()
        self._settings = Settings()
        self._homogeneous = True
        self._hosts: Sequence[str] = ()
        self._dynamic_sets = False
        self._generation = -1
        self._loss: Loss | None = None  # loss that ended the last world of an elastic job
        # In an elastic job: True if this worker has the training's state and can send it to others.
        self.has_state = False
        self.seen_files: dict[int, SeenFile] = {}  # newest checkpoint files that any worker of the job has seen
        # Generation of the last world made from a communicator; ranks outside it have not counted that world.
        self._comm_generation = -1
        self._timeline_wish = timeline.Wish(None)
        self._heritage = Heritage()
        self._tuning: dict[str, int] | None = None  # values that the autotuner has found, in an elastic job
        # Counter of new worlds and of hvd.join(). When it changes, values that ranks have counted separately are void.
        self.era = 0
        self.joins = 0  # how often all ranks have met in hvd.join()
        self._inherited: World | None = None
        # Bytes that earlier worlds moved; the dict is replaced, never changed.
        self._ended_worlds: byte_counters.Counters = {}
        _contexts.add(self)

    # Start and end

    def init(self, comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
        """Meet the other ranks and start the engine. Do nothing at a second call. ValueError on failure."""
        with self._lock:
            if self._inherited is not None:
                raise HorovodNotInitializedError(_FORKED)
            if self._world is not None:
                return
            stacks.offer()
            self._settings = settings.load(os.environ)
            if elastic_place.is_elastic(os.environ):
                self._init_elastic(comm, process_sets)
                return
            self._topology = topology.discover(os.environ)
            log.begin(self._settings, self._topology.rank)
            if not self._topology.is_launched:
                log.say_alone()
            mpi = self._prepare_mpi(comm)
            if self._comm is not None:
                generation = communicators.latest_generation(self._comm, self._comm_generation + 1, self._timeout_s)
            else:  # Every rank has called hvd.init() equally often, so all ranks compute one number.
                generation = max(self._settings.integer("HOROVOD_GENERATION"), self._generation + 1)
            self._join(generation, process_sets, mpi)
            self.global_set.mpi_comm = communicators.passed_communicator(comm)

    @property
    def _timeout_s(self) -> float:
        return self._settings.number("HOROVOD_GLOO_TIMEOUT_SECONDS")

    def _prepare_mpi(self, comm: Any) -> str | None:
        """Find the communicator from which to make the world, if any, and adapt the topology to it.

        Return the value of `bootstrap.Wishes.mpi`: why MPI cannot be used, empty if it can, None if MPI is not wanted.
        """
        wants_mpi = str(self._settings.text("HOROVOD_CPU_OPERATIONS")).lower() == "mpi"
        threads = not self._settings.flag("HOROVOD_MPI_THREADS_DISABLE")
        mpi = mpi_library.unusable(self._topology, os.environ, threads) if wants_mpi else None
        self._comm = None
        if comm is not None:
            self._comm = communicators.communicator_of(comm, self._topology, os.environ, self._timeout_s)
            if self._comm is not None:
                self._topology = communicators.place_in(self._comm, self._topology)
        return mpi

    def _init_elastic(self, comm: Any, process_sets: Sequence[ProcessSet] | str | None) -> None:
        """Take the rank that the driver assigns to this worker, and join its world.

        If the generation fails before its world is up, ask the driver again.
        """
        if comm is not None:
            raise ValueError("hvd.init(comm=...) is not possible in an elastic job: its driver decides who takes part")
        for attempt in range(_MOST_ATTEMPTS):
            lost, self._loss = self._loss, None
            fresh, seen = not self.has_state, tuple(self.seen_files.values())
            place = elastic_place.take_place(self._settings, os.environ, lost, fresh=fresh, seen=seen)
            self.seen_files = merged(self.seen_files, place.seen)
            os.environ.update(place.variables())
            os.environ.pop(place_variables.PLANNED, None)
            self._settings = settings.load(os.environ)
            self._topology = place.topology
            log.begin(self._settings, self._topology.rank)
            try:
                self._join(place.generation, process_sets, None)
                return
            except bootstrap.WorldFailedError as error:
                if attempt + 1 == _MOST_ATTEMPTS:
                    raise
                self.note_loss(error)

    def note_loss(self, error: HorovodInternalError) -> None:
        """Record why this world ended. The next request to the elastic driver reports it."""
        self._loss = elastic_place.loss_of(error)

    def _join(self, generation: int, process_sets: Sequence[ProcessSet] | str | None, mpi: str | None) -> None:
        elastic = elastic_place.is_elastic(os.environ)
        if process_sets is not None or not elastic or self._heritage.is_first:
            self._dynamic_sets = process_sets == "dynamic" or self._settings.flag("HOROVOD_DYNAMIC_PROCESS_SETS")
        if not elastic or self._heritage.is_first:
            self._timeline_wish = timeline.first_wish(self._settings)
        static_sets = [] if process_sets is None or isinstance(process_sets, str) else list(process_sets)
        by_communicator = any(one.mpi_comm is not None for one in static_sets)
        # A new worker names the ranks of the first generation, which may have had more ranks than this one.
        ranks = [] if elastic and generation > 0 else self._check_static(process_sets, static_sets)
        wishes = bootstrap.Wishes(ranks, by_communicator, self._comm, mpi)
        if elastic:
            word = self._heritage.word(elastic_place.birth_id(os.environ), self._topology.host).packed()
            wishes = replace(wishes, heritage=word, tuning=self._tuning)
        self._start(generation, static_sets, ranks, wishes)

    def _check_static(self, argument: object, static_sets: list[ProcessSet]) -> list[tuple[int, ...]]:
        if isinstance(argument, str) and argument != "dynamic":
            raise ValueError(f"process_sets must be a list of ProcessSet or 'dynamic', not {argument!r}")
        ranks: list[tuple[int, ...]] = []
        for process_set in static_sets:
            if process_set is self.global_set:
                raise ValueError("process_sets contains the global process set, which always exists")
            checked = check_ranks(self._ranks_of(process_set), self._topology.size)
            if (process_set.mpi_comm is None and checked in ranks) or len(checked) == self._topology.size:
                raise ValueError(
                    f"process_sets contains the same ranks twice: {list(checked)} (the set of all ranks always exists)"
                )
            ranks.append(checked)
        return ranks

    def _ranks_of(self, process_set: ProcessSet) -> list[int]:
        if process_set.mpi_comm is None:
            return process_set.ranks or []
        communicators.check_mpi(self._comm, self._topology, os.environ)
        find = partial(communicators.ranks_in, process_set.mpi_comm, self._comm)
        return find() if self.mpi_plane is None else self.mpi_plane.call(find)

    def _start(
        self, generation: int, static_sets: list[ProcessSet], ranks: list[tuple[int, ...]], wishes: bootstrap.Wishes
    ) -> None:
        def met() -> None:
            if wishes.comm is None:
                self._generation = generation
            else:
                self._comm_generation = generation
            self.era += 1

        started = bootstrap.start(self._settings, self._topology, generation, wishes, os.environ, met)
        self._world, self._topology, self._homogeneous = started.world, started.topology, started.homogeneous
        self._hosts = started.hosts
        waits.note_initializer()
        if self._topology.is_launched:
            leaving.watch(self)
        if started.main is not None and started.topology.is_launched:
            os.environ.update(_torchrun_variables(started.topology, *started.main))
        if started.jobs:
            self.mpi_plane = self._start_plane()
        elastic_generation = generation if started.heritages else 0
        timeline.begin(self._world, self._settings, self._topology.rank, self._timeline_wish, elastic_generation)
        self._bind(self.global_set, 0, tuple(range(self._topology.size)))
        try:
            if started.heritages:
                self._inherit(started, generation, static_sets)
            mine = dict(zip(ranks, static_sets, strict=False))
            for members in started.process_sets:
                self._register(mine.get(members) or ProcessSet(members), members, by_init=True)
        except Exception as error:
            self.shutdown()
            failed = bootstrap.WorldFailedError if elastic_place.is_elastic(os.environ) else HorovodInitializationError
            raise failed(f"Process sets could not be set up: {error}") from error

    def _inherit(self, started: bootstrap.Started, generation: int, passed: Sequence[ProcessSet]) -> None:
        """Take over the process sets and the tuned values that the job has from earlier generations."""
        self._tuning = dict(started.tuning) if started.tuning else None
        agreed = agree([Word.unpacked(found) for found in started.heritages])
        unknown = self._heritage.take(agreed, generation, passed)
        for process_set in [] if agreed.is_first else unknown:
            log.logger.warning(
                "%s was passed to hvd.init(), but the workers that were there before have no such set: "
                "it stays unregistered",
                process_set,
            )
        for known, objects, ranks in self._heritage.handed_down():
            if not ranks:
                for process_set in objects:
                    self.sets.bind_empty(process_set, EmptyMembership(self.world, known.origin, known.births))
                continue
            self._register(objects[0], ranks, is_new=False)
            for process_set in objects[1:]:
                self.sets.bind_beside(process_set, objects[0])

    def _start_plane(self) -> Plane:
        from horovod.common.mpi_plane import Plane  # imported late because few programs need it

        return Plane(self.world, self._comm if self._comm is not None else mpi_library.load().COMM_WORLD)

    def shutdown(self) -> None:
        """Leave the world: pending operations fail, and memory is released. Do nothing if there is no world."""
        with self._lock:
            world, self._world = self._world, None
            if world is None:
                return
            self.sets.tell_all_unbound()
            self._forget_sets()
            if self._settings.flag("HOROVOD_AUTOTUNE") and elastic_place.is_elastic(os.environ):
                self._tuning = tuned_by(world.describe()) or self._tuning
            plane, self.mpi_plane = self.mpi_plane, None
            if plane is not None:
                plane.leave()
            world.close()
            self._ended_worlds = byte_counters.total(self._ended_worlds, byte_counters.counted_by(world.describe()))
            if plane is not None:
                plane.end()
            self.handles.clear()

    def fail(self, what: str) -> bool | None:
        """End the world at once because this rank `what`, such as "raised ValueError". See leaving.Member.

        shutdown() must still be called afterwards.
        """
        world = self._world  # Do not take the lock: a thread that waits in a collective may hold it.
        return None if world is None else world.fail(f"rank {self._topology.rank} {what}")

    def _forget_sets(self) -> None:
        self.sets.drop_all()
        self.global_set.process_set_id, self.global_set.mpi_comm = 0, None

    def leave_to_parent(self) -> None:
        """Refuse further use in a forked child, because the engine belongs to the parent.

        The child must never run the engine's destructor.
        """
        self._lock = threading.RLock()
        self.mpi_plane = None
        self._ended_worlds = {}
        if self._world is not None:
            self._inherited, self._world = self._world, None
            self._forget_sets()

    # Queries

    @property
    def is_initialized(self) -> bool:
        return self._world is not None

    @property
    def world(self) -> World:
        if self._world is None:
            self._refuse()
        return self._world

    def counters(self) -> dict[str, Any] | None:
        """Return the engine's counters; None without a world, and while one is opened or closed. Thread-safe."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            counted: dict[str, Any] | None = json.loads(self._world.describe()) if self._world is not None else None
        finally:
            self._lock.release()
        return counted

    def moved_bytes(self) -> byte_counters.Counters:
        """Return the bytes that this process has moved in this world and all earlier ones. Thread-safe."""
        while True:  # Do not take the lock: a thread that opens or closes a world holds it for long.
            ended = self._ended_worlds
            counted = byte_counters.counted_by(self.world.describe())
            if self._ended_worlds is ended:
                return byte_counters.total(ended, counted)

    @property
    def topology(self) -> Topology:
        if self._world is None:
            self._refuse()
        return self._topology

    @property
    def hosts(self) -> Sequence[str]:
        """The host of each rank of this world."""
        if self._world is None:
            self._refuse()
        return self._hosts

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def is_homogeneous(self) -> bool:
        """True if every host has the same number of ranks."""
        if self._world is None:
            self._refuse()
        return self._homogeneous

    @property
    def generation(self) -> int:
        """Number of the last world that this process joined; -1 before the first."""
        return self._generation

    def _refuse(self) -> NoReturn:
        raise HorovodNotInitializedError(_NOT_INITIALIZED if self._inherited is None else _FORKED)

    def membership_of(self, process_set: ProcessSet) -> Membership:
        """Return the membership of the registered set that has this object's id.

        ValueError if no set has the id, or this rank is not a member.
        """
        if self._world is None and process_set.membership is None:
            self._refuse()
        return self.sets.membership_of(process_set, self._topology.rank)

    def native_of(self, process_set: ProcessSet) -> Member:
        """Return the native membership of the set, for native calls. Raise what `membership_of` raises."""
        native = self.sets.native_with_id(self.membership_of(process_set).id)
        assert native is not None
        return native

    def membership_with_id(self, set_id: int) -> Membership | None:
        return self.sets.membership_with_id(set_id)

    def check_registered(self, process_set: ProcessSet) -> int:
        """Return the id of a set. ValueError if the object has none, or no registered set has that id."""
        if self._world is None:
            self._refuse()
        return self.sets.check_registered(process_set)

    def registered(self, process_set: ProcessSet) -> ProcessSet | None:
        """Return the registered set that an object names by its id, usually the object itself, or None."""
        return self.sets.named_by(process_set)

    def set_with_id(self, set_id: int) -> ProcessSet:
        """Return the registered set that has an id, for callers that can pass only a number."""
        if self._world is None:
            self._refuse()
        return self.sets.with_id(set_id)

    def registered_sets(self) -> dict[int, list[int]]:
        """Return the ranks of each registered set, by the set's id."""
        if self._world is None:
            self._refuse()
        return self.sets.ranks_by_id()

    # Timeline

    def start_timeline(self, path: str | os.PathLike[str], mark_cycles: bool) -> None:
        timeline.start(self.world, self._settings, self.topology.rank, path, mark_cycles)
        self._timeline_wish = timeline.Wish(path, mark_cycles)

    def stop_timeline(self) -> None:
        timeline.stop(self.world, self._settings)
        self._timeline_wish = timeline.Wish(None)

    def show(self, name: str, began_ns: int, ended_ns: int) -> None:
        """Add an event of the program itself to the timeline, if one is written."""
        world = self._world
        if world is not None:
            world.show(name, began_ns, ended_ns)

    # Process sets

    def add_process_set(self, process_set: ProcessSet | Sequence[int]) -> ProcessSet:
        """Register a set on all ranks at once. Every rank of the job must call this."""
        self._require_dynamic_sets()
        added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
        if added.mpi_comm is not None and added is not self.global_set:
            return self._add_by_communicator(added)
        return self._add(added, check_ranks(added.ranks or [], self.topology.size))

    def add_own_set(self, ranks: Sequence[int]) -> ProcessSet:
        """Return a set with these ranks for this package's own use. Every rank of the job must call this.

        Process sets need not be dynamic. The set ends with the world.
        """
        for _, existing, its_ranks in self.sets.with_ranks():
            if its_ranks == tuple(ranks) and existing is not None:
                return existing
        added = ProcessSet(ranks)
        self._register(added, check_ranks(ranks, self.topology.size), is_new=False)
        return added

    def _add_by_communicator(self, added: ProcessSet) -> ProcessSet:
        """Register the sets of all communicators that ranks pass.

        Ranks may pass different communicators, and each rank knows only its own. So all ranks register all of them.
        """
        from horovod.common.objects import allgather_object  # imported late because it imports this module

        mine = communicators.members_or_refusal(lambda: self._ranks_of(added))
        sets = communicators.all_sets(allgather_object(mine, "add_process_set.by_communicator"))
        # A rank that is a member of no set passes COMM_NULL. It can only mean the set if there is just one.
        meant = mine or (sets[0] if len(sets) == 1 else None)
        for ranks in sets:
            self._add(added if ranks == meant else ProcessSet(ranks), ranks)
        return added

    def _add(self, added: ProcessSet, ranks: tuple[int, ...]) -> ProcessSet:
        for set_id, existing, its_ranks in self.sets.with_ranks():
            if its_ranks == ranks:
                if self._heritage.adopts(existing, added):
                    self.sets.adopt(set_id, added)
                    return added
                raise ValueError(f"A process set with ranks {list(ranks)} already exists: {existing}")
            if existing is added:
                raise ValueError(f"{existing} is registered already, with other ranks: make a new hvd.ProcessSet")
        self._register(added, ranks)
        return added

    def remove_process_set(self, process_set: ProcessSet) -> bool:
        """Remove a set on all ranks at once. Return False for the global set and for a set that is not registered."""
        self._require_dynamic_sets()
        set_id = process_set.process_set_id
        if not set_id or self.sets.named_by(process_set) is None:
            return False
        self._heritage.removed(self.sets.tell_unbound(set_id))
        self.sets.drop(set_id, process_set)
        self._run_on_all(REMOVE_PROCESS_SET, f"remove_process_set.{set_id}", (set_id,))
        return True

    def _require_dynamic_sets(self) -> None:
        if self._world is None:
            self._refuse()
        if not self._dynamic_sets:
            raise ValueError(
                "Process sets can change while the job runs only if HOROVOD_DYNAMIC_PROCESS_SETS=1 is set on all "
                "ranks, or with hvd.init(process_sets='dynamic')"
            )

    def _register(
        self, process_set: ProcessSet, ranks: tuple[int, ...], by_init: bool = False, is_new: bool = True
    ) -> None:
        name = "add_process_set." + ",".join(map(str, ranks))
        self._bind(process_set, self._run_on_all(ADD_PROCESS_SET, name, ranks), ranks)
        if is_new:
            self._heritage.made(process_set, ranks, by_init)

    def _bind(self, process_set: ProcessSet, set_id: int, ranks: tuple[int, ...]) -> None:
        self.sets.bind(process_set, self.world, set_id, ranks, self._topology.rank)

    def observe(self, observer: Observer) -> None:
        """Call the observer for each set that is or will be registered. It first gets the sets that exist already."""
        with self._lock:
            self.sets.observe(observer)

    def _run_on_all(self, kind: int, name: str, numbers: tuple[int, ...]) -> int:
        world = self.world
        try:
            handle = world.submit(0, name, EngineCall(kind, will_wait=True), TensorLocation(UINT8, ()), numbers)
        except EngineError as error:
            raise translate(error, name) from None
        value = self.handles.finish(Pending(world, handle, name, None, None, lambda it: world.value(it.handle)))
        assert isinstance(value, int)
        return value


def tuned_by(description: str) -> dict[str, int] | None:
    """Return the values that the autotuner has found, from World.describe(). None while it has not finished."""
    found = json.loads(description)
    if found.get("autotune") != "done":
        return None
    return {name: int(found[name]) for name in ("fusion_threshold", "cycle_time_us", "chunk_bytes")}


def _torchrun_variables(found: Topology, address: str, port: int) -> dict[str, str]:
    """Return torchrun's variables with this rank's place, for libraries that read only these."""
    place = {
        "RANK": found.rank,
        "WORLD_SIZE": found.size,
        "LOCAL_RANK": found.local_rank,
        "LOCAL_WORLD_SIZE": found.local_size,
    }
    return torchrun_variables.settable(torchrun_variables.variables(place, address, port), os.environ)


_contexts: weakref.WeakSet[Context] = weakref.WeakSet()
default_context = Context(global_process_set)


def _shutdown_all() -> None:
    threads_at_exit.prepare_threads()
    for context in list(_contexts):
        context.shutdown()


def _leave_all_to_parent() -> None:
    for context in list(_contexts):
        context.leave_to_parent()


# atexit runs the handler that was registered last first, so contexts shut down before MPI ends.
atexit.register(mpi_library.end)
atexit.register(_shutdown_all)
os.register_at_fork(after_in_child=_leave_all_to_parent)
