# SPDX-License-Identifier: Apache-2.0
"""Session: the rounds of one model in one world. A thread answers messages while the program computes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from horovod.common.context import default_context
from horovod.common.exceptions import HorovodInternalError
from horovod.common.local_sgd.exchange import Average, Fetched, Part, send_state
from horovod.common.local_sgd.fragments import split
from horovod.common.local_sgd.messages import Kind, Message
from horovod.common.local_sgd.options import AVERAGE, Options
from horovod.common.local_sgd.outer import Outer
from horovod.common.local_sgd.post import Channel, Post
from horovod.common.local_sgd.rounds import (
    Action,
    Coordinator,
    Drop,
    Exchange,
    Fetch,
    Send,
    Serve,
    StartTimer,
    Take,
    Worker,
    fragments_of,
)
from horovod.common.log import logger

Floats = npt.NDArray[np.float32]
_ACTIVE_S, _IDLE_S = 0.001, 0.01  # pauses between two looks at the messages
_COORDINATOR_KINDS = (Kind.READY, Kind.HAVE_ALL, Kind.FINISH)


@dataclass(frozen=True)
class Members:
    """The members of a session, as all of them have agreed.

    Attributes:
        ranks: The rank of each member.
        workers: The members of each worker.
        coordinator: The member that decides about rounds.
        me: This rank's index among the members.
        number: Number of the session.
    """

    ranks: tuple[int, ...]
    workers: tuple[tuple[int, ...], ...]
    coordinator: int
    me: int
    number: int

    @property
    def my_worker(self) -> int:
        return next(index for index, members in enumerate(self.workers) if self.me in members)

    @property
    def local_members(self) -> tuple[int, ...]:
        """The members of this rank's worker."""
        return self.workers[self.my_worker]

    @property
    def position(self) -> int:
        """This rank's index among the members of its worker."""
        return self.local_members.index(self.me)


class Session:
    """Rounds from the moment when the members meet until they part, or until the world ends."""

    def __init__(self, members: Members, options: Options, outer: Outer, next_round: int) -> None:
        self.world = default_context.world
        self.members = members
        self.post = Post(members.ranks, members.me, members.number)
        count = options.fragments
        self.worker = Worker(members.coordinator, members.workers, next_round, count)
        self._coordinator = (
            Coordinator(members.workers, next_round, count) if members.me == members.coordinator else None
        )
        self._options = options
        self._outer = outer
        self._to_start: tuple[Callable[[], Floats], int] | None = None
        self._difference = np.empty(0, np.float32)  # global weights minus this worker's, of this rank's part
        self._done = np.empty(0, np.float32)  # average of the round that waits for its outcome
        self._average: Average | None = None
        self._fetched: Fetched | None = None
        self._deadline: tuple[int, float] | None = None
        self._error: BaseException | None = None
        self._is_stopped = False
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._thread = threading.Thread(target=self._run, name="horovod-local-sgd", daemon=True)
        self._thread.start()

    # Called by the training thread

    def start(self, read: Callable[[], Floats], steps: int) -> None:
        """Report that this worker is ready for the next round.

        Args:
            read: Function that returns the round's fragment of this worker's weights; called on the session's thread.
            steps: This worker's weight in the average.
        """
        with self.lock:
            self.check()
            self._to_start = read, steps
            self._changed.notify_all()

    def finish(self, is_dirty: bool) -> None:
        """Report that this rank has ended its training."""
        with self.lock:
            self.check()
            self._act(self.worker.finish(is_dirty))

    def take_changed(self) -> list[int]:
        """Wait until no round is open here. Return the fragments that have changed since the last call."""
        self._wait(lambda: not self.worker.is_open and self._to_start is None)
        with self.lock:
            changed = sorted(self.worker.changed)
            self.worker.changed.clear()
        return changed

    def close(self) -> None:
        """Wait until no message is in flight. All members call this after the last round."""
        with self.lock:
            for member in range(len(self.members.ranks)):
                if member != self.members.me:
                    self.post.tell(member, Message(Kind.BYE))
        self._wait(lambda: self.post.is_over)
        self.stop()

    def stop(self) -> None:
        """End the thread. Operations in flight end with the world."""
        with self.lock:
            self._is_stopped = True
            self._changed.notify_all()

    def part_of(self, fragment: int, position: int | None = None) -> Part:
        """Return the part of a fragment that a rank of each worker exchanges; by default this rank's position."""
        position = self.members.position if position is None else position
        ranges = split(0, self._outer.fragments[fragment].size, len(self.members.local_members))
        return Part(fragment, *ranges[position])

    def gather_parts(self, fragments: Sequence[int]) -> None:
        """Complete these fragments on all ranks of this worker. All of them call this with equal arguments."""
        others = [member for member in self.members.local_members if member != self.members.me]
        with self.lock:
            for member in others:
                send_state(self.post, self._outer, member, [self.part_of(it) for it in fragments], Channel.PART)
            awaited = [Fetched(self.post, member, self._parts_of(fragments, member), Channel.PART) for member in others]
        for one in awaited:
            self._wait(one.advance)
            one.store(self._outer)

    def _parts_of(self, fragments: Sequence[int], member: int) -> list[Part]:
        return [self.part_of(fragment, self.members.local_members.index(member)) for fragment in fragments]

    def check(self) -> None:
        """Raise the error that ended the session."""
        if self._error is not None:
            raise self._error

    def _wait(self, is_done: Callable[[], bool]) -> None:
        with self.lock:
            while not is_done():
                self.check()
                if self._is_stopped:
                    raise HorovodInternalError("the world in which this worker exchanges weights has ended")
                self._changed.wait(_IDLE_S)

    # Called by the session's own thread

    def _run(self) -> None:
        with self.lock:
            try:
                while not self._is_stopped:
                    is_active = self._advance()
                    if is_active:
                        self._changed.notify_all()
                    self._changed.wait(_ACTIVE_S if is_active or self.worker.is_open else _IDLE_S)
            except BaseException as error:  # the training thread raises it in the next step
                self._error = error
                self._changed.notify_all()
            with contextlib.suppress(Exception):
                self.post.abandon()

    def _advance(self) -> bool:
        """Handle what has arrived. Return True if anything has happened."""
        if self._to_start is not None:
            self._start_round(*self._to_start)
            self._to_start = None
        messages = self.post.messages()
        for member, message in messages:
            self._handle(member, message)
        if self._deadline is not None and time.monotonic() >= self._deadline[1]:
            assert self._coordinator is not None
            number, self._deadline = self._deadline[0], None
            self._act(self._coordinator.on_deadline(number))
        if self._average is not None and self._average.advance():
            self._done, is_finite, self._average = self._average.values, self._average.is_finite, None
            self._act(self.worker.exchanged(is_finite))
            return True
        if self._fetched is not None and self._fetched.advance():
            self._fetched.store(self._outer)
            self._fetched = None
            self._act(self.worker.fetched())
            return True
        return bool(messages)

    def _start_round(self, read: Callable[[], Floats], steps: int) -> None:
        part = self.part_of(self.worker.next_round % self._options.fragments)
        local = read()[part.begin : part.end]
        with np.errstate(invalid="ignore", over="ignore"):
            self._difference = self._outer.weights[part.fragment][part.begin : part.end] - local
        self._act(self.worker.start(steps, bool(np.isfinite(self._difference).all())))

    def _handle(self, member: int, message: Message) -> None:
        if message.kind == Kind.BYE:
            return
        if message.kind in _COORDINATOR_KINDS:
            assert self._coordinator is not None
            self._act(self._coordinator.on_message(member, message))
        else:
            self._act(self.worker.on_message(member, message))

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self.post.tell(action.member, action.message)
            elif isinstance(action, StartTimer):
                self._deadline = action.round, time.monotonic() + self._options.deadline_s
            else:
                self._act_on_values(action)

    def _act_on_values(self, action: Any) -> None:
        workers, position = self.members.workers, self.members.position
        if isinstance(action, Exchange):
            chosen = [index for index, weight in enumerate(action.weights) if weight]
            members, weights = [workers[it][position] for it in chosen], [action.weights[it] for it in chosen]
            self._average = Average(self.post, self._options.wire, self._difference, members, weights)
        elif isinstance(action, Take):
            part = self.part_of(action.round % self._options.fragments)
            is_last = self.worker.last_rounds is not None  # it has few steps or none, so momentum would carry it away
            self._outer.apply(part.fragment, self._done, part.begin, AVERAGE if is_last else None)
        elif isinstance(action, Drop):
            self._log_drop(action)
        elif isinstance(action, Fetch):
            logger.warning(
                "this rank missed rounds %d to %d: the steps since its last round are dropped",
                action.first,
                action.last,
            )
            self.post.tell(workers[action.worker][position], Message(Kind.FETCH, action.first, action.last))
            parts = self._parts_between(action.first, action.last)
            self._fetched = Fetched(self.post, workers[action.worker][position], parts)
        else:
            assert isinstance(action, Serve)
            send_state(self.post, self._outer, action.member, self._parts_between(action.first, action.last))

    def _parts_between(self, first: int, last: int) -> list[Part]:
        return [self.part_of(fragment) for fragment in fragments_of(first, last, self._options.fragments)]

    def _log_drop(self, drop: Drop) -> None:
        fragment = drop.round % self._options.fragments
        if drop.culprit < 0:
            logger.warning("round %d (fragment %d) is dropped: the average overflows", drop.round, fragment)
            return
        ranks = [self.members.ranks[member] for member in self.members.workers[drop.culprit]]
        logger.warning(
            "round %d (fragment %d) is dropped on all workers: the weights of rank %s contain NaN or infinity",
            drop.round,
            fragment,
            ", ".join(map(str, ranks)),
        )
        if drop.culprit == self.members.my_worker:
            self.worker.changed.add(fragment)  # this worker continues with the global weights
