# SPDX-License-Identifier: Apache-2.0
"""Core: what a framework's API calls after each inner step; it starts, advances and merges the rounds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from horovod._engine import World
from horovod.common.calls import BROADCAST, Call
from horovod.common.context import default_context
from horovod.common.joining import elastic_place
from horovod.common.local_sgd import meeting
from horovod.common.local_sgd.fragments import divide, layers_of
from horovod.common.local_sgd.meeting import NO_STATE, Introduction
from horovod.common.local_sgd.options import Options
from horovod.common.local_sgd.outer import Outer, by_name, flattened
from horovod.common.local_sgd.post import collectives
from horovod.common.local_sgd.session import Members, Session
from horovod.common.objects import allgather_object
from horovod.common.process_set import ProcessSet

Floats = npt.NDArray[np.float32]


class Weights(Protocol):
    """A model's weights, as a framework's API reads and writes them. All calls come from the training thread.

    A class may also have `start_read(names)`. It begins a copy and returns a function that waits for it and returns
    what `read` returns. Another thread calls that function, so that the program goes on during the copy.
    """

    def names_and_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return all parameters in the model's order, equal on all ranks."""

    def read(self, names: Sequence[str]) -> list[Floats]:
        """Return copies of these parameters as float32 on the host, in the order of `names`."""

    def write(self, values: Mapping[str, Floats]) -> None:
        """Replace these parameters by float32 arrays of their shapes. Arrays may be reused after the call."""


def _world() -> World | None:
    return default_context.world if default_context.is_initialized else None


def _broadcast(values: Floats, rank: int, process_set: ProcessSet) -> None:
    """Overwrite an array on all ranks of the set by that of one rank."""
    call = Call(BROADCAST, process_set, "local_sgd.state", root=rank, in_place=True)
    collectives.handles.finish(collectives.start(call, [values], will_wait=True))


_sessions = 0  # how many sessions this process has been in
_made: WeakKeyDictionary[ProcessSet, int] = WeakKeyDictionary()  # how many cores the program has made for each set


class Core:
    """The rounds of one model on one rank. Every rank of the process set makes one, in one order.

    Attributes:
        fragments: The fragments of the model.
        steps: Number of inner steps.
        outer: Global weights and momentum.
    """

    def __init__(self, weights: Weights, options: Options) -> None:
        self.weights = weights
        self.options = options
        parameters = weights.names_and_shapes()
        options.check_layers(layers_of([name for name, _ in parameters]))
        self._parameters = [(name, tuple(int(one) for one in shape)) for name, shape in parameters]
        self.fragments = divide(self._parameters, options.fragments)
        self.outer = Outer(self.fragments, options.outer)
        self.steps = 0
        self._next_round = NO_STATE  # while there is no session
        self._session: Session | None = None
        self._started = 0  # rounds that this worker has started
        self._since = [0] * options.fragments  # inner steps since the last merge of each fragment
        self._due_at = 0.0  # with every_seconds: when the next round starts
        self._merge_at: int | None = None  # inner step after which the open round is merged
        self._began_ns = 0
        self._number = _made[options.process_set] = 1 + _made.get(options.process_set, 0)
        self._unmerged: list[
            int
        ] = []  # fragments of rounds that ended before the last session did, or in a loaded state

    # Interface

    @property
    def rounds(self) -> int:
        """Number of rounds that are over."""
        session = self._session
        return max(0, self._next_round if session is None else session.worker.next_round)

    @property
    def bytes_sent(self) -> int:
        """Bytes of values that this rank has sent in its present world, without control messages."""
        return 0 if self._session is None else self._session.post.bytes_sent

    @property
    def bytes_received(self) -> int:
        """Bytes of values that this rank has received in its present world, without control messages."""
        return 0 if self._session is None else self._session.post.bytes_received

    @property
    def has_state(self) -> bool:
        """True once this worker has global weights."""
        return self._session is not None or self._next_round != NO_STATE

    @property
    def local_ranks(self) -> list[int]:
        """The ranks of this worker: with across="hosts" those of this host. Call after begin()."""
        members = self._meet().members
        return [members.ranks[member] for member in members.local_members]

    def begin(self) -> None:
        """Give all ranks the weights of the first rank. Call before the first inner step; step() calls it too."""
        self._meet()

    def step(self) -> None:
        """Start, advance and merge rounds. Call after each inner step."""
        session = self._meet()
        session.check()
        self.steps += 1
        self._since = [count + 1 for count in self._since]
        self._merge_if_due(session)
        if self._merge_at is None and self._is_due():
            self._start(session)
            self._merge_if_due(session)

    def finish(self) -> None:
        """Complete the open round, exchange what was trained since, and part. Every rank calls this at the end.

        All ranks then have the global weights.
        """
        session = self._meet()
        if self._merge_at is not None:
            self._merge(session)
        session.finish(any(self._since))
        self._merge(session)
        for _ in range(session.worker.last_rounds or 0):
            self._start(session)
            self._merge(session)
        for fragment, values in zip(self.fragments, self.outer.weights, strict=True):
            self.weights.write(by_name(fragment, values))
        session.close()
        self._next_round, self._session = session.worker.next_round, None
        if self.options.every is not None:
            self._started = self.steps * self.options.fragments // self.options.every

    def sync(self, keeps_inner: bool = True) -> None:
        """Meet the ranks of a new world: take global weights and momentum from the rank with the highest round.

        Args:
            keeps_inner: True if ranks that had global weights keep their own inner weights.
        """
        self._leave_old_world()
        self._meet()
        if not keeps_inner:  # the program has restored older weights
            for fragment, values in zip(self.fragments, self.outer.weights, strict=True):
                self.weights.write(by_name(fragment, values))
            self._since = [0] * self.options.fragments

    def state_dict(self) -> dict[str, Any]:
        """Return counters, global weights and momentum: integers, and float32 arrays by parameter name.

        A round that is open is not part of it.
        """
        session = self._session
        if session is None:
            return self._state(self._next_round, self._unmerged)
        with session.lock:
            return self._state(session.worker.next_round, sorted(session.worker.changed))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what state_dict() returned. Inner weights are not part of it. Every rank calls this."""
        entries = set(self._state(0, []))
        if set(state) != entries:
            raise ValueError(f"state_dict: expected the entries {sorted(entries)}, not {sorted(state)}")
        if self._session is not None and self._session.world is _world():
            raise RuntimeError("load_state_dict() must be called before the first step, or after finish() on all ranks")
        self._leave_old_world()
        self.outer.load(state["weights"], state["momentum"])
        self.steps, self._next_round = int(state["steps"]), int(state["rounds"])
        self._started = int(state["started"])
        since = [int(count) for count in state["since"]]
        count = self.options.fragments
        self._since = since if len(since) == count else [max(since, default=0)] * count
        unmerged = [int(number) for number in state["unmerged"]]
        self._unmerged = unmerged if len(since) == count or not unmerged else list(range(count))
        if self.options.every is not None:  # the saved `started` counts rounds of the saved `every`
            self._started = self.steps * count // self.options.every
        self._merge_at = None

    def _state(self, next_round: int, unmerged: Sequence[int]) -> dict[str, Any]:
        weights, momentum = self.outer.all_by_name()
        return {
            "steps": self.steps,
            "rounds": next_round,
            "started": self._started,
            "since": list(self._since),
            "unmerged": list(unmerged),
            "weights": weights,
            "momentum": momentum,
        }

    # Rounds

    def _is_due(self) -> bool:
        if self.options.every is None:
            return time.monotonic() >= self._due_at
        return self.steps * self.options.fragments >= (self._started + 1) * self.options.every

    def _start(self, session: Session) -> None:
        number = session.worker.next_round % self.options.fragments
        fragment = self.fragments[number]
        self._began_ns = time.monotonic_ns()
        read = self._read_of(fragment.names)
        weight = 1 if self.options.every is not None else max(1, self._since[number])
        session.start(lambda: flattened(fragment, read()), weight)
        self._started += 1
        self._merge_at = self.steps + self.options.delay

    def _read_of(self, names: Sequence[str]) -> Callable[[], list[Floats]]:
        """Return a function that returns the values that these parameters have now, for another thread."""
        start_read = getattr(self.weights, "start_read", None)
        if start_read is not None:
            reading: Callable[[], list[Floats]] = start_read(names)
            return reading
        values = self.weights.read(names)
        return lambda: values

    def _merge_if_due(self, session: Session) -> None:
        if self._merge_at is not None and self.steps >= self._merge_at:
            self._merge(session)

    def _merge(self, session: Session) -> None:
        """Wait until the open round is over, and merge the fragments that have changed."""
        changed = session.take_changed()
        self._merge_at = None
        if self.options.every_seconds is not None:
            self._due_at = time.monotonic() + self.options.every_seconds / self.options.fragments
        if len(session.members.local_members) > 1:
            session.gather_parts(changed)
        for number in changed:
            self._merge_fragment(number)
        if changed:
            default_context.show("LOCAL_SGD_ROUND", self._began_ns or time.monotonic_ns(), time.monotonic_ns())

    def _merge_fragment(self, number: int) -> None:
        fragment, merged = self.fragments[number], self.outer.weights[number]
        if self.options.merge:
            share = np.float32(self.options.merge)
            local = flattened(fragment, self.weights.read(fragment.names))
            if np.isfinite(local).all():
                merged = share * local + (np.float32(1) - share) * merged
        self.weights.write(by_name(fragment, merged))
        self._since[number] = 0
        self._unmerged = [one for one in self._unmerged if one != number]

    # Meeting

    def _meet(self) -> Session:
        """Return the session in this world; begin it if there is none."""
        if self._session is None or self._session.world is not _world():
            self._leave_old_world()
            self._session = self._new_session()
        return self._session

    def _leave_old_world(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.stop()
            with session.lock:
                self._next_round = session.worker.next_round
                self._unmerged = sorted(session.worker.changed)
            self._merge_at = None

    def _new_session(self) -> Session:
        global _sessions
        process_set = self.options.process_set
        introductions = allgather_object(self._introduction(), "local_sgd.meet", process_set)
        meeting.check_alike(introductions)
        workers = meeting.workers_of(introductions, self.options.across)
        ids = [one.worker_id for one in introductions]
        ranks = tuple(one.rank for one in introductions)
        me = ranks.index(default_context.topology.rank)
        number = _sessions = 1 + max(one.sessions for one in introductions)
        self._agree_on_state(introductions, me)
        for fragment in self._unmerged:
            self._merge_fragment(fragment)
        self._due_at = time.monotonic() + (self.options.every_seconds or 0) / self.options.fragments
        members = Members(ranks, workers, ids.index(min(ids)), me, number)
        return Session(members, self.options, self.outer, self._next_round)

    def _introduction(self) -> Introduction:
        topology, birth = default_context.topology, None
        if elastic_place.is_elastic(os.environ):
            birth = elastic_place.birth_id(os.environ)
            if self.options.across == "hosts":
                raise ValueError("across='hosts' does not work in elastic jobs; use across='ranks'")
        has_state = self._next_round != NO_STATE
        return Introduction(
            topology.rank,
            topology.rank if birth is None else birth,
            default_context.hosts[topology.rank],
            _sessions,
            self.options.described(),
            self._parameters,
            self._next_round,
            meeting.digest_of(self.outer) if has_state else "",
            self.steps,
            self._started,
            self._number if birth is None else 0,  # a new worker of an elastic job may have made fewer
        )

    def _agree_on_state(self, introductions: Sequence[Introduction], me: int) -> None:
        """Give all members one global state: that of the highest round, else the first rank's weights."""
        if all(one.next_round == NO_STATE for one in introductions):
            self._take_weights_of(introductions[0].rank, is_mine=me == 0)
            return
        source = meeting.source_of(introductions)
        if source is None:
            return
        found = introductions[source]
        for number in range(self.options.fragments):
            before = self.outer.weights[number].copy()
            for values in (self.outer.weights[number], self.outer.momentum[number]):
                _broadcast(values, found.rank, self.options.process_set)
            if self._next_round == NO_STATE:
                self.weights.write(by_name(self.fragments[number], self.outer.weights[number]))
            elif not np.array_equal(before, self.outer.weights[number]):
                self._merge_fragment(number)
        if self._next_round == NO_STATE:
            self.steps, self._started = found.steps, found.started
        self._next_round = found.next_round

    def _take_weights_of(self, rank: int, is_mine: bool) -> None:
        for number, fragment in enumerate(self.fragments):
            self.outer.set_weights(number, self.weights.read(fragment.names))
            _broadcast(self.outer.weights[number], rank, self.options.process_set)
            if not is_mine:
                self.weights.write(by_name(fragment, self.outer.weights[number]))
        self._next_round = 0
