# SPDX-License-Identifier: Apache-2.0
"""The state machines of rounds: cases by hand, and random orders of messages, late workers, deaths and newcomers."""

import random
from collections import deque

import pytest

from horovod.common.local_sgd.messages import Kind, Message, decoded, encoded
from horovod.common.local_sgd.rounds import (
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

THREE = ((0,), (1,), (2,))
HOSTS = ((0, 1), (2, 3))


def ready(number=0, steps=1, is_finite=1):
    return Message(Kind.READY, number, steps, is_finite)


def sent(actions):
    return {action.member: action.message for action in actions if isinstance(action, Send)}


def test_a_round_begins_when_all_workers_are_ready():
    one = Coordinator(THREE, 0, 1)
    assert one.on_message(0, ready()) == [StartTimer(0)]
    assert one.on_message(2, ready(steps=5)) == []
    assert sent(one.on_message(1, ready())) == dict.fromkeys(range(3), Message(Kind.LIST, 0, weights=(1, 1, 5)))
    have = Message(Kind.HAVE_ALL, 0, 1)
    assert one.on_message(0, have) == one.on_message(1, have) == []
    assert sent(one.on_message(2, have)) == dict.fromkeys(range(3), Message(Kind.OUTCOME, 0, 1, -1))
    assert (one.round, one.taken) == (1, 0)


def test_the_deadline_leaves_a_late_worker_out_and_it_fetches():
    one = Coordinator(THREE, 0, 2)
    one.on_message(0, ready())
    one.on_message(1, ready())
    assert sent(one.on_deadline(0)) == dict.fromkeys((0, 1), Message(Kind.LIST, 0, weights=(1, 1, 0)))
    assert one.on_deadline(0) == []
    assert one.on_message(2, ready()) == []  # answered once the outcome is known
    one.on_message(0, Message(Kind.HAVE_ALL, 0, 1))
    actions = one.on_message(1, Message(Kind.HAVE_ALL, 0, 1))
    assert sent(actions)[2] == Message(Kind.OVER, 0, 0, 0)
    late = Worker(0, THREE, 0, 2)
    late.start(1, True)
    assert late.on_message(0, Message(Kind.OVER, 0, 0, 0)) == [Fetch(0, 0, 0)]
    assert late.is_open
    assert late.fetched() == []
    assert (late.next_round, late.changed, late.is_open) == (1, {0}, False)


def test_a_worker_that_missed_a_round_is_not_waited_for_until_it_reports():
    one = Coordinator(THREE, 0, 1)
    for number in range(2):
        one.on_message(0, ready(number))
        actions = one.on_message(1, ready(number))
        assert bool(actions) == bool(number)  # the second round does not wait for the deadline
        assert sent(actions or one.on_deadline(number))[0].kind == Kind.LIST
        one.on_message(0, Message(Kind.HAVE_ALL, number, 1))
        one.on_message(1, Message(Kind.HAVE_ALL, number, 1))
    assert sent(one.on_message(2, ready(0))) == {2: Message(Kind.OVER, 1, 1, 0)}
    one.on_message(0, ready(2))
    assert one.on_message(1, ready(2)) == []  # now the worker is waited for again


def test_nan_drops_the_round_on_all_workers_without_an_exchange():
    one = Coordinator(THREE, 3, 1)
    one.on_message(0, ready(3))
    one.on_message(1, ready(3, is_finite=0))
    drop = Message(Kind.OUTCOME, 3, 0, 1)
    assert sent(one.on_message(2, ready(3))) == dict.fromkeys(range(3), drop)
    worker = Worker(0, THREE, 3, 1)
    worker.start(1, True)
    assert worker.on_message(0, drop) == [Drop(3, 1)]
    assert (worker.next_round, worker.changed) == (4, set())


def test_an_average_that_overflows_is_dropped():
    one = Coordinator(THREE, 0, 1)
    for member in range(3):
        one.on_message(member, ready())
    one.on_message(0, Message(Kind.HAVE_ALL, 0, 1))
    one.on_message(1, Message(Kind.HAVE_ALL, 0, 0))
    assert sent(one.on_message(2, Message(Kind.HAVE_ALL, 0, 1)))[0] == Message(Kind.OUTCOME, 0, 0, -1)
    assert one.taken == -1


def test_a_host_is_ready_when_all_its_ranks_are():
    one = Coordinator(HOSTS, 0, 1)
    for member in range(3):
        assert one.on_message(member, ready()) in ([], [StartTimer(0)])
    assert sent(one.on_deadline(0)) == dict.fromkeys((0, 1), Message(Kind.LIST, 0, weights=(1, 0)))
    assert one.on_message(3, ready()) == []
    one.on_message(1, Message(Kind.HAVE_ALL, 0, 1))
    over = sent(one.on_message(0, Message(Kind.HAVE_ALL, 0, 1)))
    assert over[2] == over[3] == Message(Kind.OVER, 0, 0, 0)


def test_a_request_waits_until_the_round_is_over_here():
    worker = Worker(0, THREE, 0, 1)
    assert worker.on_message(2, Message(Kind.FETCH, 0, 0)) == []
    worker.start(1, True)
    worker.on_message(0, Message(Kind.LIST, 0, weights=(1, 1, 0)))
    worker.exchanged(True)
    assert worker.on_message(0, Message(Kind.OUTCOME, 0, 1, -1)) == [Take(0), Serve(2, 0, 0)]


def test_fragments_of_rounds():
    assert fragments_of(0, 0, 3) == [0]
    assert fragments_of(2, 3, 3) == [0, 2]
    assert fragments_of(0, 100, 3) == [0, 1, 2]
    assert fragments_of(4, 3, 3) == []


def test_messages_survive_their_encoding():
    message = Message(Kind.LIST, 7, 3, -1, (4, 0, 2))
    assert decoded(encoded(message, 3)) == message


class Rank:
    """One rank of the model: its worker, and per fragment the list of (round, participants) that it applied."""

    def __init__(self, member, workers, first, fragments, state):
        self.worker = Worker(0, workers, first, fragments)
        self.state = [list(one) for one in state]
        self.exchange = None
        self.left = 0  # steps of training to go
        self.stage = "training"


class World:
    """Ranks of the model in one world: every message is delivered, in any order between two pairs."""

    def __init__(self, workers, fragments, dice, states, first, log):
        self.workers, self.fragments, self.dice, self.log = workers, fragments, dice, log
        members = [member for group in workers for member in group]
        self.ranks = [Rank(it, workers, first, fragments, states) for it in members]
        self.coordinator = Coordinator(workers, first, fragments)
        self.wires = {(source, to): deque() for source in members for to in members}
        self.timer = None
        self.shares = {}  # members that have begun the exchange of a round

    def act(self, member, actions):
        for action in actions:
            if isinstance(action, Send):
                self.wires[member, action.member].append(action.message)
            elif isinstance(action, StartTimer):
                self.timer = action.round
            elif isinstance(action, Exchange):
                self.ranks[member].exchange = action
                self.shares.setdefault(action.round, set()).add(member)
            elif isinstance(action, Take):
                self.take(member, action)
            elif isinstance(action, Fetch):
                source = self.workers[action.worker][self.position(member)]
                self.wires[member, source].append(Message(Kind.FETCH, action.first, action.last))
            elif isinstance(action, Serve):
                wanted = fragments_of(action.first, action.last, self.fragments)
                self.wires[member, action.member].append({it: list(self.ranks[member].state[it]) for it in wanted})
            else:
                assert isinstance(action, Drop)
                self.agree(action.round, "dropped")

    def position(self, member):
        return next(group.index(member) for group in self.workers if member in group)

    def take(self, member, action):
        rank = self.ranks[member]
        chosen = tuple(index for index, weight in enumerate(rank.exchange.weights) if weight)
        self.agree(action.round, chosen)
        rank.state[action.round % self.fragments].append((action.round, chosen))

    def agree(self, number, what):
        assert self.log.setdefault(number, what) == what, f"two workers disagree about round {number}"

    def is_exchanged(self, member):
        rank = self.ranks[member]
        chosen = [index for index, weight in enumerate(rank.exchange.weights) if weight]
        return all(set(self.workers[index]) <= self.shares[rank.exchange.round] for index in chosen)

    def choices(self):
        found = [("deliver", pair) for pair, wire in self.wires.items() if wire]
        found += [("deadline", None)] if self.timer is not None else []
        for member, rank in enumerate(self.ranks):
            if rank.exchange is not None and self.is_exchanged(member):
                found.append(("exchanged", member))
        for index, group in enumerate(self.workers):
            if all(not self.ranks[it].worker.is_open and self.ranks[it].stage != "over" for it in group):
                found.append(("step", index))
        return found

    def do(self, kind, value):
        if kind == "deliver":
            self.deliver(*value)
        elif kind == "deadline":
            number, self.timer = self.timer, None
            self.act(0, self.coordinator.on_deadline(number))
        elif kind == "exchanged":
            rank, finite = self.ranks[value], self.dice.random() < 0.95
            rank.exchange, exchange = None, rank.exchange
            actions = rank.worker.exchanged(finite)
            rank.exchange_done = exchange
            self.act(value, actions)
        else:
            self.step(self.workers[value])

    def deliver(self, source, to):
        message, rank = self.wires[source, to].popleft(), self.ranks[to]
        if isinstance(message, dict):
            for fragment, state in message.items():
                rank.state[fragment] = state
            self.act(to, rank.worker.fetched())
        elif message.kind in (Kind.READY, Kind.HAVE_ALL, Kind.FINISH):
            self.act(to, self.coordinator.on_message(source, message))
        else:
            if message.kind == Kind.OUTCOME and message.value:
                rank.exchange = rank.exchange_done
            self.act(to, rank.worker.on_message(source, message))
            if message.kind == Kind.OUTCOME:
                rank.exchange = None

    def step(self, group):
        is_finite = self.dice.random() < 0.95
        for member in group:
            rank = self.ranks[member]
            if rank.worker.last_rounds is not None:
                rank.stage = "last"
            if rank.stage == "training" and rank.left <= 0:
                rank.stage = "finishing"
                self.act(member, rank.worker.finish(True))
            elif rank.stage == "last" and not rank.worker.last_rounds:
                rank.stage = "over"
            else:
                if rank.stage == "last":
                    rank.worker.last_rounds -= 1
                rank.left -= 1
                self.act(member, rank.worker.start(1, is_finite))

    def check_states(self):
        """Check that each rank has exactly the rounds that were taken before its next round."""
        for rank in self.ranks:
            if not rank.worker.is_open:
                for fragment, state in enumerate(rank.state):
                    end = rank.worker.next_round
                    taken = [(number, what) for number, what in sorted(self.log.items()) if what != "dropped"]
                    must = [one for one in taken if one[0] % self.fragments == fragment and one[0] < end]
                    assert state[: len(must)] == must
                    assert set(state) <= {one for one in taken if one[0] % self.fragments == fragment}


@pytest.mark.parametrize("workers", [THREE, HOSTS], ids=["ranks", "hosts"])
def test_no_two_workers_ever_disagree(workers):
    for seed in range(200):
        dice = random.Random(seed)
        fragments = dice.choice((1, 2, 3))
        log, states, first = {}, [[] for _ in range(fragments)], 0
        for life in range(dice.choice((1, 2, 3))):
            world = World(workers, fragments, dice, states, first, log)
            for index, group in enumerate(workers):
                steps = dice.choice((0, 3, 8)) if index else 5
                for member in group:
                    world.ranks[member].left = steps
            dies = dice.randrange(20, 200) if life < 2 else None
            while choices := world.choices():
                world.do(*dice.choice(choices))
                world.check_states()
                dies = None if dies is None else dies - 1
                if dies == 0:
                    break
            else:
                assert all(rank.stage == "over" for rank in world.ranks), (
                    "a worker waits for a message that never comes"
                )
                assert len({str(rank.state) for rank in world.ranks}) == 1
            # A death ends the world. The next one begins with the state of the rank with the highest round.
            newest = max(world.ranks, key=lambda rank: rank.worker.next_round)
            states, first = newest.state, newest.worker.next_round
            for number in [it for it in log if it >= first]:
                del log[number]
