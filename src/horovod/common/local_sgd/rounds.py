# SPDX-License-Identifier: Apache-2.0
"""The protocol of rounds as two pure state machines: events go in, actions come out. No clock, socket or weights.

A *worker* is one rank, or all ranks of one host. A *member* is one rank by its index in the process set. All members
of a worker get the same decisions. Round r exchanges fragment r modulo the number of fragments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from horovod.common.local_sgd.messages import Kind, Message

Workers = Sequence[Sequence[int]]
"""The members of each worker. All workers have equally many."""


@dataclass(frozen=True)
class Send:
    """Action: send a control message to a member."""

    member: int
    message: Message


@dataclass(frozen=True)
class StartTimer:
    """Action of the coordinator: call `on_deadline(round)` when the deadline has passed."""

    round: int


@dataclass(frozen=True)
class Exchange:
    """Action: exchange the fragment of this round with the workers of the list, then call `exchanged`."""

    round: int
    weights: tuple[int, ...]


@dataclass(frozen=True)
class Take:
    """Action: apply the average of this round to the global weights."""

    round: int


@dataclass(frozen=True)
class Drop:
    """Action: forget the average of this round. `culprit` is the worker with NaN or infinity, or -1."""

    round: int
    culprit: int


@dataclass(frozen=True)
class Fetch:
    """Action: ask a worker for the fragments of rounds `first` to `last`, then call `fetched`."""

    worker: int
    first: int
    last: int


@dataclass(frozen=True)
class Serve:
    """Action: send a member the fragments of rounds `first` to `last`."""

    member: int
    first: int
    last: int


Action = Send | StartTimer | Exchange | Take | Drop | Fetch | Serve


def fragments_of(first: int, last: int, count: int) -> list[int]:
    """Return the fragments that rounds `first` to `last` exchange, in order."""
    return sorted({number % count for number in range(max(first, last - count + 1), last + 1)})


class Coordinator:
    """Decisions about rounds, made on one rank for all workers.

    Attributes:
        round: The round that is gathering workers, or being exchanged.
        taken: The last round that was taken.
    """

    def __init__(self, workers: Workers, first_round: int, fragments: int) -> None:
        self.round = first_round
        self.taken = first_round - 1
        self._workers = workers
        self._worker_of = {member: index for index, members in enumerate(workers) for member in members}
        self._fragments = fragments
        self._holder = 0  # a worker that has the result of round `taken`
        self._reports: dict[int, dict[int, Message]] = {}  # READY messages of workers that no decision has answered
        self._ready: set[int] = set()
        self._participants: frozenset[int] | None = None  # None while the round gathers workers
        self._have: set[int] = set()
        self._is_finite = True
        self._absent: set[int] = set()  # workers that missed the last round and have not reported since
        self._finished: set[int] = set()  # members that have ended their training
        self._is_dirty = False
        self._last_rounds = 0  # rounds to go after all members have ended; they wait for all workers

    def on_message(self, member: int, message: Message) -> list[Action]:
        """Return the answer to READY, HAVE_ALL or FINISH."""
        if message.kind == Kind.READY:
            return self._on_ready(member, message)
        if message.kind == Kind.HAVE_ALL:
            return self._on_have_all(member, message)
        if message.kind == Kind.FINISH:
            return self._on_finish(member, message)
        raise AssertionError(f"the coordinator got {message} from member {member}")

    def on_deadline(self, number: int) -> list[Action]:
        """Begin this round with the workers that are ready, if it has not begun yet."""
        is_due = number == self.round and self._participants is None and bool(self._ready)
        return self._begin_round() if is_due and not self._last_rounds else []

    def _on_ready(self, member: int, message: Message) -> list[Action]:
        worker = self._worker_of[member]
        reports = self._reports.setdefault(worker, {})
        reports[member] = message
        if len(reports) < len(self._workers[worker]):
            return []
        self._absent.discard(worker)
        if self._participants is not None:
            return []  # answered when the round has ended
        if message.round < self.round:
            return self._tell_over([worker])
        self._ready.add(worker)
        begun = self._begin_if_complete()
        is_first = len(self._ready) == 1 and not self._last_rounds
        return begun or ([StartTimer(self.round)] if is_first else [])

    def _begin_if_complete(self) -> list[Action]:
        awaited = {
            worker
            for worker, members in enumerate(self._workers)
            if worker not in self._absent and not self._finished.issuperset(members)
        }
        return self._begin_round() if self._ready and self._ready >= awaited else []

    def _begin_round(self) -> list[Action]:
        participants = self._participants = frozenset(self._ready)
        reports = {worker: self._reports.pop(worker) for worker in participants}
        self._absent = set(range(len(self._workers))) - participants - set(self._reports)
        self._ready, self._have, self._is_finite = set(), set(), True
        ill = [worker for worker in sorted(participants) if any(not one.other for one in reports[worker].values())]
        if ill:
            return self._end_round(False, ill[0])
        steps = {worker: max(one.value for one in reports[worker].values()) for worker in participants}
        weights = tuple(steps.get(worker, 0) for worker in range(len(self._workers)))
        return self._to_all(participants, Message(Kind.LIST, self.round, weights=weights))

    def _on_have_all(self, member: int, message: Message) -> list[Action]:
        assert self._participants is not None, message
        assert message.round == self.round, (self.round, message)
        self._have.add(member)
        self._is_finite &= bool(message.value)
        awaited = sum(len(self._workers[worker]) for worker in self._participants)
        return self._end_round(self._is_finite, -1) if len(self._have) == awaited else []

    def _end_round(self, is_taken: bool, culprit: int) -> list[Action]:
        participants = self._participants
        assert participants is not None
        actions = self._to_all(participants, Message(Kind.OUTCOME, self.round, int(is_taken), culprit))
        if is_taken:
            self.taken, self._holder = self.round, min(participants)
        self.round += 1
        self._participants = None
        self._last_rounds = max(0, self._last_rounds - 1)
        late = [worker for worker, reports in self._reports.items() if len(reports) == len(self._workers[worker])]
        return actions + self._tell_over(late)

    def _tell_over(self, workers: Iterable[int]) -> list[Action]:
        workers = list(workers)
        for worker in workers:
            del self._reports[worker]
        return self._to_all(workers, Message(Kind.OVER, self.round - 1, self.taken, self._holder))

    def _on_finish(self, member: int, message: Message) -> list[Action]:
        self._finished.add(member)
        self._is_dirty |= bool(message.value)
        everyone = range(len(self._workers))
        if len(self._finished) < sum(map(len, self._workers)):
            return self._begin_if_complete() if self._participants is None else []
        self._last_rounds = self._fragments if self._is_dirty else 0
        self._absent.clear()
        self._finished.clear()
        more = (int(self._is_dirty),)
        return self._to_all(everyone, Message(Kind.CLOSE, self.round - 1, self.taken, self._holder, more))

    def _to_all(self, workers: Iterable[int], message: Message) -> list[Action]:
        return [Send(member, message) for worker in sorted(workers) for member in self._workers[worker]]


class Phase(Enum):
    """What a worker waits for."""

    IDLE = "no round is open here"
    LISTING = "reported ready; waits for the list"
    EXCHANGING = "exchanges ranges with the participants"
    DECIDING = "has the whole average; waits for the outcome"
    FETCHING = "was late; fetches the result"
    FINISHING = "has ended its training; waits for the others"


class Worker:
    """One rank's part in the rounds.

    Attributes:
        next_round: All earlier rounds are over, and their results are in the global weights of this rank.
        changed: Fragments whose global weights have changed since they were last merged.
        last_rounds: After all ranks have ended, number of rounds that follow; None before.
    """

    def __init__(self, coordinator: int, workers: Workers, first_round: int, fragments: int) -> None:
        self.next_round = first_round
        self.changed: set[int] = set()
        self.last_rounds: int | None = None
        self.phase = Phase.IDLE
        self._coordinator = coordinator
        self._workers = workers
        self._fragments = fragments
        self._over = first_round - 1  # last round that is over, while FETCHING
        self._requests: list[Serve] = []  # requests of late workers for rounds that are not over here

    @property
    def is_open(self) -> bool:
        """True from `start` until the round is over here."""
        return self.phase is not Phase.IDLE

    def start(self, steps: int, is_finite: bool) -> list[Action]:
        """Report that this worker is ready for its next round."""
        assert self.phase is Phase.IDLE, self.phase
        self.phase = Phase.LISTING
        return [self._tell(Message(Kind.READY, self.next_round, steps, int(is_finite)))]

    def finish(self, is_dirty: bool) -> list[Action]:
        """Report that this rank has ended its training."""
        assert self.phase is Phase.IDLE, self.phase
        self.phase = Phase.FINISHING
        return [self._tell(Message(Kind.FINISH, self.next_round, int(is_dirty)))]

    def exchanged(self, is_finite: bool) -> list[Action]:
        """Report that this rank has the whole average."""
        assert self.phase is Phase.EXCHANGING, self.phase
        self.phase = Phase.DECIDING
        return [self._tell(Message(Kind.HAVE_ALL, self.next_round, int(is_finite)))]

    def fetched(self) -> list[Action]:
        """Continue after the fetched fragments have replaced this rank's."""
        assert self.phase is Phase.FETCHING, self.phase
        return self._go_on(self._over + 1)

    def on_message(self, member: int, message: Message) -> list[Action]:
        """Return the actions that follow from the coordinator's decision, or from a late worker's request."""
        if message.kind == Kind.FETCH:
            self._requests.append(Serve(member, message.round, message.value))
            return self._answers()
        if message.kind == Kind.LIST:
            self._expect(message, Phase.LISTING)
            self.phase = Phase.EXCHANGING
            return [Exchange(message.round, message.weights[: len(self._workers)])]
        if message.kind == Kind.OUTCOME:
            return self._on_outcome(message)
        if message.kind == Kind.CLOSE:
            self.last_rounds = self._fragments if message.weights[0] else 0
        assert message.kind in (Kind.OVER, Kind.CLOSE), message
        assert self.phase in (Phase.LISTING, Phase.FINISHING), (self.phase, message)
        if message.value < self.next_round:
            return self._go_on(message.round + 1)
        self.phase, self._over = Phase.FETCHING, message.round
        self.changed.update(fragments_of(self.next_round, message.value, self._fragments))
        return [Fetch(message.other, self.next_round, message.value)]

    def _on_outcome(self, message: Message) -> list[Action]:
        if message.value:
            self._expect(message, Phase.DECIDING)
            self.changed.add(message.round % self._fragments)
            return [Take(message.round), *self._go_on(message.round + 1)]
        assert self.phase in (Phase.LISTING, Phase.DECIDING), (self.phase, message)
        return [Drop(message.round, message.other), *self._go_on(message.round + 1)]

    def _expect(self, message: Message, phase: Phase) -> None:
        assert self.phase is phase, (self.phase, message)
        assert message.round == self.next_round, (self.next_round, message)

    def _go_on(self, next_round: int) -> list[Action]:
        self.phase, self.next_round = Phase.IDLE, next_round
        return self._answers()

    def _answers(self) -> list[Action]:
        due = [one for one in self._requests if one.last < self.next_round]
        self._requests = [one for one in self._requests if one.last >= self.next_round]
        return list(due)

    def _tell(self, message: Message) -> Send:
        return Send(self._coordinator, message)
