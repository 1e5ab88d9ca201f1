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
from typing import Any

from horovod._engine import Member, World
from horovod.common import (
    byte_counters,
    leaving,
    log,
    mpi_library,
    settings,
    stacks,
    threads_at_exit,
    timeline,
    topology,
    torchrun_variables,
    waits,
)
from horovod.common.elastic_worker import ElasticWorker
from horovod.common.exceptions import HorovodInitializationError, HorovodNotInitializedError
from horovod.common.handles import HandleTable
from horovod.common.joining import bootstrap, communicators, elastic_place
from horovod.common.membership import Membership, Memberships, default_memberships
from horovod.common.mpi_support import MpiSupport
from horovod.common.process_set import ProcessSet, global_process_set
from horovod.common.registered_sets import Observer, RegisteredSets
from horovod.common.set_registration import SetRegistration
from horovod.common.settings import Settings
from horovod.common.topology import Topology

_NOT_INITIALIZED = "Horovod has not been initialized; call hvd.init() first."
# Largest number of attempts of an elastic worker in one hvd.init(). Each failure means that another worker was lost
# meanwhile.
_MOST_ATTEMPTS = 20
_FORKED = (
    "Horovod was initialized in the parent of this forked process, which cannot take part in collectives. "
    "Call Horovod in the parent only, or start children with the 'spawn' method and call hvd.init() there."
)


class Context:
    """One world as this process sees it.

    Attributes:
        handles: The operations in flight.
        sets: The registered process sets; empty without a world.
        global_set: The process set of all ranks.
        elastic: What this worker of an elastic job keeps from one world to the next.
        mpi: The use of MPI.
        timelines: The timelines of this context's worlds.
        era: Counter of new worlds and of hvd.join(). When it changes, values that ranks have counted separately are
            void.
        joins: How often all ranks have met in hvd.join().
    """

    def __init__(self, global_set: ProcessSet | None = None, members: Memberships | None = None) -> None:
        self.handles = HandleTable()
        self.global_set = global_set if global_set is not None else ProcessSet([])
        self.sets = RegisteredSets({} if members is None else members)
        self.elastic = ElasticWorker()
        self.mpi = MpiSupport()
        self.timelines = timeline.Timelines()
        self.era = 0
        self.joins = 0
        self._registration = SetRegistration(
            self.global_set, self.sets, self.handles, self.elastic.heritage, self.mpi, self._running
        )
        self._lock = threading.RLock()
        self._started: bootstrap.Started | None = None
        self._settings = Settings()
        self._generation = -1
        self._inherited: bootstrap.Started | None = None  # the parent's world, in a forked child
        self._moved_bytes = byte_counters.MovedBytes()
        _contexts.add(self)

    # Start and end

    def init(self, comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
        """Meet the other ranks and start the engine. Do nothing at a second call. ValueError on failure."""
        with self._lock:
            if self._inherited is not None:
                raise HorovodNotInitializedError(_FORKED)
            if self._started is not None:
                return
            stacks.offer()
            self._settings = settings.load(os.environ)
            if elastic_place.is_elastic(os.environ):
                self._init_elastic(comm, process_sets)
                return
            place = topology.discover(os.environ)
            log.begin(self._settings, place.rank)
            if not place.is_launched:
                log.say_alone()
            mpi, place = self.mpi.prepare(comm, place, self._settings)
            if self.mpi.comm is not None:
                generation = self.mpi.next_generation(self._settings.number("HOROVOD_GLOO_TIMEOUT_SECONDS"))
            else:  # Every rank has called hvd.init() equally often, so all ranks compute one number.
                generation = max(self._settings.integer("HOROVOD_GENERATION"), self._generation + 1)
            self._join(place, generation, process_sets, mpi)
            self.global_set.mpi_comm = communicators.passed_communicator(comm)

    def _init_elastic(self, comm: Any, process_sets: Sequence[ProcessSet] | str | None) -> None:
        """Take the rank that the driver assigns to this worker, and join its world.

        If the generation fails before its world is up, ask the driver again.
        """
        if comm is not None:
            raise ValueError("hvd.init(comm=...) is not possible in an elastic job: its driver decides who takes part")
        for attempt in range(_MOST_ATTEMPTS):
            place = self.elastic.take_place(self._settings)
            self._settings = settings.load(os.environ)
            log.begin(self._settings, place.topology.rank)
            try:
                self._join(place.topology, place.generation, process_sets, None)
                return
            except bootstrap.WorldFailedError as error:
                if attempt + 1 == _MOST_ATTEMPTS:
                    raise
                self.elastic.note_loss(error)

    def _join(
        self, place: Topology, generation: int, process_sets: Sequence[ProcessSet] | str | None, mpi: str | None
    ) -> None:
        elastic = elastic_place.is_elastic(os.environ)
        is_first = not elastic or self.elastic.heritage.is_first
        if process_sets is not None or is_first:
            self._registration.choose(process_sets, self._settings)
        if is_first:
            self.timelines.choose(self._settings)
        static_sets = [] if process_sets is None or isinstance(process_sets, str) else list(process_sets)
        by_communicator = any(one.mpi_comm is not None for one in static_sets)
        # A new worker names the ranks of the first generation, which may have had more ranks than this one.
        late = elastic and generation > 0
        ranks = [] if late else self._registration.check_static(process_sets, static_sets, place)
        wishes = bootstrap.Wishes(ranks, by_communicator, self.mpi.comm, mpi)
        if elastic:
            wishes = self.elastic.added_to(wishes, place.host)
        self._start(place, generation, static_sets, wishes)

    def _start(self, place: Topology, generation: int, static_sets: list[ProcessSet], wishes: bootstrap.Wishes) -> None:
        def met() -> None:
            if wishes.comm is None:
                self._generation = generation
            else:
                self.mpi.note_generation(generation)
            self.era += 1

        started = bootstrap.start(self._settings, place, generation, wishes, os.environ, met)
        self._started = started
        waits.note_initializer()
        if started.topology.is_launched:
            leaving.watch(self)
            if started.main is not None:
                os.environ.update(_torchrun_variables(started.topology, *started.main))
        if started.jobs:
            self.mpi.start_plane(started.world)
        elastic_generation = generation if started.heritages else 0
        self.timelines.begin(started.world, self._settings, started.topology.rank, elastic_generation)
        self._registration.begin(started)
        try:
            if started.heritages:
                self.elastic.tuning = dict(started.tuning) if started.tuning else None
            self._registration.register_first(started, generation, static_sets, list(wishes.process_sets))
        except Exception as error:
            self.shutdown()
            failed = bootstrap.WorldFailedError if elastic_place.is_elastic(os.environ) else HorovodInitializationError
            raise failed(f"Process sets could not be set up: {error}") from error

    def shutdown(self) -> None:
        """Leave the world: pending operations fail, and memory is released. Do nothing if there is no world."""
        with self._lock:
            started, self._started = self._started, None
            if started is None:
                return
            world = started.world
            self.sets.tell_all_unbound()
            self._registration.forget()
            if self._settings.flag("HOROVOD_AUTOTUNE") and elastic_place.is_elastic(os.environ):
                self.elastic.note_tuning(world)
            plane = self.mpi.forget_plane()
            if plane is not None:
                plane.leave()
            world.close()
            self._moved_bytes.world_ends(world)
            if plane is not None:
                plane.end()
            self.handles.clear()

    def fail(self, what: str) -> bool | None:
        """End the world at once, with an error that says what this rank did.

        `what` continues "rank N", for example "raised ValueError". See leaving.Member. shutdown() must still be called
        afterwards.
        """
        started = self._started  # Do not take the lock: a thread that waits in a collective may hold it.
        return None if started is None else started.world.fail(f"rank {started.topology.rank} {what}")

    def leave_to_parent(self) -> None:
        """Refuse further use in a forked child, because the engine belongs to the parent.

        The child must never run the engine's destructor.
        """
        self._lock = threading.RLock()
        self.mpi.plane = None
        self._moved_bytes.forget()
        if self._started is not None:
            self._inherited, self._started = self._started, None
            self._registration.forget()

    # Queries

    @property
    def is_initialized(self) -> bool:
        return self._started is not None

    def _running(self) -> bootstrap.Started:
        """Return the present world. Raise HorovodNotInitializedError if there is none."""
        started = self._started
        if started is None:
            raise HorovodNotInitializedError(_NOT_INITIALIZED if self._inherited is None else _FORKED)
        return started

    @property
    def world(self) -> World:
        return self._running().world

    @property
    def topology(self) -> Topology:
        return self._running().topology

    @property
    def hosts(self) -> Sequence[str]:
        """The host of each rank of this world."""
        return self._running().hosts

    @property
    def is_homogeneous(self) -> bool:
        """True if every host has the same number of ranks."""
        return self._running().homogeneous

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def generation(self) -> int:
        """Number of the last world that this process joined; -1 before the first."""
        return self._generation

    def counters(self) -> dict[str, Any] | None:
        """Return the engine's counters; None without a world, and while one is opened or closed. Thread-safe."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            started = self._started
            counted: dict[str, Any] | None = json.loads(started.world.describe()) if started is not None else None
        finally:
            self._lock.release()
        return counted

    def moved_bytes(self) -> byte_counters.Counters:
        """Return the bytes that this process has moved in this world and all earlier ones. Thread-safe."""
        return self._moved_bytes.counted(lambda: self.world)

    def show(self, name: str, began_ns: int, ended_ns: int) -> None:
        """Add an event of the program itself to the timeline, if one is written."""
        started = self._started
        if started is not None:
            started.world.show(name, began_ns, ended_ns)

    # Process sets

    @property
    def registered_sets(self) -> RegisteredSets:
        """The registered sets. Raise HorovodNotInitializedError without a world."""
        self._running()
        return self.sets

    @property
    def set_registration(self) -> SetRegistration:
        """The registration of further sets. Raise HorovodNotInitializedError without a world."""
        self._running()
        return self._registration

    def membership_of(self, process_set: ProcessSet) -> Membership:
        """Return the membership of the registered set that has this object's id.

        Raise ValueError if no set has the id, or this rank is not a member.
        """
        if self._started is None and process_set.membership is None:
            self._running()
        return self.sets.membership_of(process_set)

    def native_of(self, process_set: ProcessSet) -> Member:
        """Return the native membership of the set, for native calls. Raise what `membership_of` raises."""
        native = self.sets.native_with_id(self.membership_of(process_set).id)
        assert native is not None
        return native

    def observe(self, observer: Observer) -> None:
        """Call the observer for each set that is or will be registered. It first gets the sets that exist already."""
        with self._lock:
            self.sets.observe(observer)


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
default_context = Context(global_process_set, default_memberships)


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
