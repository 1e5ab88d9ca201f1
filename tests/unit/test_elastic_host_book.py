# SPDX-License-Identifier: Apache-2.0
"""Which hosts an elastic job can use: a table and random orders of events, without processes, sockets or a clock."""

from hypothesis import given, settings
from hypothesis import strategies as st

from horovod.launcher.elastic import host_book as b


class Keeper:
    """Driver of a host book: feeds it events and keeps its state."""

    def __init__(self, rest_s=b.REST_S):
        self.book, self.now = b.Book(rest_s), 0.0

    def tell(self, event, later=0.0):
        self.now += later
        self.book, actions = b.decide(self.book, event, self.now)
        return actions


def opened(hosts):
    keeper = Keeper()
    keeper.tell(b.Found(hosts))
    for host in hosts:
        keeper.tell(b.Opened(host))
    return keeper


def texts(actions):
    return [action.text for action in actions if isinstance(action, b.Say)]


def test_this_machine_is_open_at_once_and_others_when_their_agents_answer():
    keeper = Keeper()
    assert keeper.tell(b.Found({"here": 2, "x": 1, "y": 3}, frozenset({"here"}))) == [
        b.Open(("x", "y")),
        b.Offer({"here": 2}, 4),
    ]
    assert keeper.tell(b.Opened("y")) == [b.Offer({"here": 2, "y": 3}, 1)]
    assert keeper.tell(b.Opened("x")) == [b.Offer({"here": 2, "x": 1, "y": 3}, 0)]
    assert keeper.tell(b.Pass()) == []


def test_a_host_that_cannot_be_opened_is_said_once_and_rests_longer_each_time():
    keeper = Keeper((10.0, 30.0))
    keeper.tell(b.Found({"x": 1}))
    rests, said = [], []
    for _ in range(4):
        said += texts(keeper.tell(b.NotOpened("x", "no route")))
        rests.append(keeper.book.next_time() - keeper.now)
        assert keeper.tell(b.Pass()) == []
        assert keeper.tell(b.Pass(), later=rests[-1]) == [b.Open(("x",))]
    assert rests == [10, 20, 30, 30]
    assert said == ["host x cannot be used: no route\n  it is tried again after 10 s"]
    assert texts(keeper.tell(b.Opened("x"))) == ["host x answers again"]


def test_a_lost_host_takes_its_slots_along_and_comes_back():
    keeper = opened({"x": 2, "y": 1})
    gone, shut, said, offer = keeper.tell(b.Lost("x", "silence"))
    assert (gone, shut, offer) == (b.Gone("x", "silence"), b.Shut("x"), b.Offer({"y": 1}, 2))
    assert said.text == "host x is lost: silence\n  it is tried again after 10 s"
    assert keeper.tell(b.Lost("x", "silence")) == []
    assert keeper.tell(b.Pass(), later=10) == [b.Open(("x",))]
    assert keeper.tell(b.Opened("x"))[-1] == b.Offer({"x": 2, "y": 1}, 0)
    keeper.tell(b.Lost("x", "again"), later=1)
    assert keeper.book.next_time() - keeper.now == 20
    keeper.tell(b.Pass(), later=20)
    keeper.tell(b.Opened("x"))
    keeper.tell(b.Lost("x", "after long"), later=b.LASTING_S)
    assert keeper.book.next_time() - keeper.now == 10


def test_a_host_that_is_taken_away_is_shut_when_nobody_runs_there():
    keeper = opened({"x": 2, "y": 1})
    assert keeper.tell(b.Found({"y": 1})) == [b.Offer({"y": 1}, 0)]
    assert keeper.tell(b.Pass(frozenset({"x", "y"}))) == []
    # The host is offered at once, because it is back before it was closed.
    assert keeper.tell(b.Found({"x": 1, "y": 1})) == [b.Offer({"x": 1, "y": 1}, 0)]
    keeper.tell(b.Found({"y": 1}))
    assert keeper.tell(b.Pass(frozenset({"y"}))) == [b.Shut("x")]
    assert keeper.tell(b.Found({"x": 1, "y": 1})) == [b.Open(("x",)), b.Offer({"y": 1}, 1)]


def test_a_host_that_is_taken_away_while_it_is_opened_or_rests():
    keeper = Keeper()
    keeper.tell(b.Found({"x": 1, "y": 1}))
    keeper.tell(b.NotOpened("y", "no route"))
    assert keeper.tell(b.Found({})) == [b.Offer({}, 0)]
    assert keeper.book.next_time() is None
    keeper.tell(b.Opened("x"))
    assert keeper.tell(b.Pass()) == [b.Shut("x")]
    assert keeper.tell(b.NotOpened("y", "late")) == []


names = st.sampled_from("xyz")
events = st.one_of(
    st.builds(b.Found, st.dictionaries(names, st.integers(1, 3)), st.sampled_from([frozenset(), frozenset("z")])),
    st.builds(b.Opened, names),
    st.builds(b.NotOpened, names, st.just("no route")),
    st.builds(b.Lost, names, st.just("silence")),
    st.builds(b.Pass, st.frozensets(names)),
)


@settings(max_examples=300, deadline=None)
@given(steps=st.lists(st.tuples(events, st.sampled_from([0.0, 1.0, 15.0])), max_size=40))
def test_whatever_happens(steps):
    keeper = Keeper()
    busy_with, offered = set(), ({}, 0)  # hosts that are being opened or are open
    for event, later in steps:
        if isinstance(event, (b.Opened, b.NotOpened)):
            entry = keeper.book.entries.get(event.host)
            if entry is None or entry.standing is not b.Standing.OPENING:
                continue  # the host is not being opened
        if isinstance(event, b.NotOpened):
            busy_with.discard(event.host)
        for action in keeper.tell(event, later):
            if isinstance(action, b.Open):
                assert not busy_with & set(action.hosts), "opened twice"
                busy_with |= set(action.hosts)
            if isinstance(action, b.Shut):
                assert action.host in busy_with
                busy_with.discard(action.host)
            if isinstance(action, b.Offer):
                assert (action.hosts, action.awaited) != offered
                offered = action.hosts, action.awaited
                assert sum(action.hosts.values()) + action.awaited == sum(keeper.book.found.values())
        moment = keeper.book.next_time()
        assert moment is None or moment > keeper.now or b.decide(keeper.book, b.Pass(), moment)[1]
