# SPDX-License-Identifier: Apache-2.0
"""Process sets across generations of an elastic job: which new worker takes a lost one's rank in a set."""

import gc

from hypothesis import given
from hypothesis import strategies as st

from horovod.common.elastic_sets import Agreed, HandedDown, Heritage, Word, agree
from horovod.common.process_sets import ProcessSet


class Job:
    """Simulated job: workers that rendezvous repeatedly, each with its memory of process sets."""

    def __init__(self) -> None:
        self.heritages: dict[int, Heritage] = {}
        self.generation = -1
        self.members: list[int] = []

    def meet(
        self, *births: int, hosts: dict[int, str] | None = None, passed: dict[int, list[ProcessSet]] | None = None
    ):
        """Start the next generation with the survivors first, like the driver; return what the workers agree on."""
        self.generation += 1
        self.members = [birth for birth in self.members if birth in births]
        self.members += [birth for birth in births if birth not in self.members]
        for gone in set(self.heritages) - set(births):
            del self.heritages[gone]
        for birth in births:
            self.heritages.setdefault(birth, Heritage())
        words = [
            Word.unpacked(self.heritages[birth].word(birth, (hosts or {}).get(birth, "a")).packed())
            for birth in self.members
        ]
        agreed = agree(words)
        for birth in self.members:
            self.heritages[birth].take(agreed, self.generation, (passed or {}).get(birth, []))
        return agreed

    def add(self, ranks: tuple[int, ...], by_init: bool = False) -> dict[int, ProcessSet]:
        sets = {birth: ProcessSet(ranks) for birth in self.members}
        for birth, process_set in sets.items():
            self.heritages[birth].made(process_set, ranks, by_init)
        return sets

    def workers_of(self, agreed: Agreed, index: int = 0) -> set[int]:
        return {agreed.members[rank][0] for rank in agreed.sets[index].ranks(agreed.members)}


def test_a_set_shrinks_and_a_replacement_takes_the_place():
    job = Job()
    assert job.meet(0, 1, 2).is_first
    sets = job.add((0, 1))
    smaller = job.meet(0, 2)
    assert job.workers_of(smaller) == {0}
    assert smaller.vacant == ((1, "a"),)
    again = job.meet(0, 2, 3)
    assert job.workers_of(again) == {0, 3}
    assert again.sets[0].ranks(again.members) == (0, 2)
    assert again.vacant == ()
    assert sets[0] in job.heritages[0].objects(again.sets[0].key)


def test_a_replacement_of_the_first_member_too():
    job = Job()
    job.meet(0, 1, 2)
    sets = job.add((0, 2))
    agreed = job.meet(1, 2, 3)  # worker 0 was replaced at once
    assert job.workers_of(agreed) == {2, 3}
    assert agreed.sets[0].ranks(agreed.members) == (1, 2)
    del sets


def test_the_same_host_comes_first():
    job = Job()
    hosts = {0: "a", 1: "a", 2: "b", 3: "b", 4: "b", 5: "a"}
    job.meet(0, 1, 2, 3, hosts=hosts)
    sets = job.add((1,)), job.add((3,))
    agreed = job.meet(0, 2, 4, 5, hosts=hosts)
    assert job.workers_of(agreed, 0) == {5}
    assert job.workers_of(agreed, 1) == {4}
    assert job.meet(0, 2, 4, 5, 6, hosts=hosts).vacant == ()  # one worker more than ever before belongs to no set
    del sets


def test_an_empty_set_waits_for_somebody():
    job = Job()
    job.meet(0, 1, 2)
    sets = job.add((1, 2))
    agreed = job.meet(0)
    assert agreed.sets[0].ranks(agreed.members) == ()
    assert job.workers_of(job.meet(0, 7)) == {7}
    del sets


def test_a_set_that_nobody_refers_to_is_gone_unless_it_was_passed_to_init():
    job = Job()
    job.meet(0, 1)
    job.add((0,), by_init=True)
    job.add((1,))
    held = job.add((0, 1))
    del held[0]  # worker 1 still holds the set
    gc.collect()
    agreed = job.meet(0, 1)
    assert [one.key for one in agreed.sets] == [(0, 0), (0, 2)]


def test_a_new_worker_finds_the_sets_that_it_passed_to_init():
    job = Job()
    job.meet(0, 1, 2)
    kept = job.add((0, 1), by_init=True)
    mine = ProcessSet([0, 1])
    stranger = ProcessSet([0, 2])
    agreed = job.meet(0, 2, 3, passed={0: [kept[0]]})
    heritage = Heritage()
    assert heritage.take(agreed, 1, [mine, stranger]) == [stranger]
    (handed,) = heritage.handed_down()
    assert handed[1] == [mine]
    assert handed[2] == (0, 2)


def test_a_script_may_add_its_sets_again_once_in_each_generation():
    job = Job()
    job.meet(0, 1)
    sets = job.add((0,))
    job.meet(0, 1)
    heritage = job.heritages[0]
    again = ProcessSet([0])
    assert heritage.adopts(sets[0], again)
    assert not heritage.adopts(sets[0], ProcessSet([0]))
    assert heritage.objects((0, 0)) == [again, sets[0]]
    heritage.removed(again)
    assert not heritage.word(0, "a").sets


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_places_are_never_lost_or_doubled(sizes, random):
    """In every generation a set keeps its number of members, and each worker is in at most one of these sets."""
    job = Job()
    births = list(range(4))
    job.meet(*births)
    first, second = job.add((0, 1), by_init=True), job.add((2, 3), by_init=True)
    newest = 3
    for size in sizes:
        survivors = random.sample(job.members, min(len(job.members), random.randint(1, size)))
        fresh = range(newest + 1, newest + 1 + max(0, size - len(survivors)))
        newest += len(fresh)
        agreed = job.meet(*survivors, *fresh)
        places = [birth for one in agreed.sets for birth in one.births]
        assert len(places) == len(set(places)) == 4
        present = {birth for birth, _ in agreed.members}
        assert {birth for birth in places if birth not in present} == {birth for birth, _ in agreed.vacant} & set(
            places
        )
        # A new worker is left out only if no membership is vacant.
        assert not agreed.vacant or set(fresh) <= set(places)
    del first, second


def test_what_is_said_survives_the_way():
    word = Word((3, "b"), ((0, "a"), (3, "b")), ((1, "a"),), (HandedDown((2, 0), (0, 1), (0, 3), True),))
    assert Word.unpacked(word.packed()) == word
