# SPDX-License-Identifier: Apache-2.0
"""Which workers of an elastic job continue when some cannot reach each other: a table, and an exhaustive search."""

import itertools
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod.launcher.elastic.choice import MAX_EXACT, BadPairs, Candidate, choose


def workers(text):
    """Return candidates 0, 1, ... on the hosts that the words name; "!" marks a worker without the state."""
    return [Candidate(birth, word[0], not word.endswith("!")) for birth, word in enumerate(text.split())]


def bad(*pairs):
    return BadPairs(
        frozenset(pair for pair in pairs if isinstance(pair[0], str)),
        frozenset(pair for pair in pairs if isinstance(pair[0], int)),
    )


@pytest.mark.parametrize(
    ("there", "pairs", "chosen"),
    [
        ("a b c", [], {0, 1, 2}),
        ("a b", [("a", "b")], {0}),  # sides of equal size: the one with the lowest birth id is chosen
        ("a b b", [("a", "b")], {1, 2}),
        ("a a b b c", [("a", "b")], {0, 1, 4}),
        ("b a c", [("a", "c")], {0, 1}),  # b and c reach each other only through a, which stays
        ("a b c d", [("a", "c"), ("a", "d"), ("b", "c"), ("b", "d")], {0, 1}),  # two halves of equal size
        ("a b c d d", [("a", "c"), ("a", "d"), ("b", "c"), ("b", "d")], {2, 3, 4}),
        ("a b c", [("a", "b"), ("a", "c"), ("b", "c")], {0}),
        ("a b! b! b!", [("a", "b")], {0}),  # the only worker with the state is on the smaller side
        ("a! b! b!", [("a", "b")], {1, 2}),  # no worker has the state yet
        ("a! b c c!", [("a", "b"), ("b", "c")], {0, 2, 3}),
        ("a! a! b c", [("a", "b"), ("a", "c"), ("b", "c")], {2}),
        ("c a! a! b!", [("a", "b")], {0, 1, 2}),  # worker 0 reaches all others and has the state
        ("a a b b", [(1, 2)], {0, 1, 3}),  # two workers cannot connect although their hosts reach each other
        ("a a b b", [(0, 2), (0, 3), (1, 2)], {0, 1}),
        ("a b c", [("x", "y"), (7, 8)], {0, 1, 2}),  # pairs of hosts and workers that are not in the job
    ],
)
def test_the_largest_set_whose_workers_reach_each_other(there, pairs, chosen):
    assert choose(workers(there), bad(*pairs)) == chosen


def all_sets(there, pairs):
    """Yield every set whose workers reach each other; it includes a worker with the state if there is one."""
    for size in range(len(there), 0, -1):
        for chosen in itertools.combinations(there, size):
            if any(pairs.parts(one, other) for one, other in itertools.combinations(chosen, 2)):
                continue
            if any(one.has_state for one in chosen) or not any(one.has_state for one in there):
                yield sorted(one.birth for one in chosen)


jobs = st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), min_size=1, max_size=8)
host_pairs = st.sets(st.sampled_from(list(itertools.combinations("abcdef", 2))))
birth_pairs = st.sets(st.sampled_from(list(itertools.combinations(range(8), 2))), max_size=4)


@settings(max_examples=150, deadline=None)
@given(jobs, host_pairs, birth_pairs, st.randoms())
def test_it_is_what_trying_all_sets_finds_in_whatever_order_the_workers_are(job, hosts, births, dice):
    there = [Candidate(birth, host, has_state) for birth, (host, has_state) in enumerate(job)]
    host_of = {one.birth: one.host for one in there}
    births = {pair for pair in births if host_of.get(pair[0]) != host_of.get(pair[1])}
    pairs = BadPairs(frozenset(hosts), frozenset(births))
    sets = list(all_sets(there, pairs))
    best = min(sets, key=lambda one: (-len(one), one))
    assert sorted(choose(there, pairs)) == best
    dice.shuffle(there)
    assert sorted(choose(there, pairs)) == best


def reached_by_all(there, pairs, chosen):
    found = [one for one in there if one.birth in chosen]
    return not any(pairs.parts(one, other) for one, other in itertools.combinations(found, 2))


@pytest.mark.parametrize("seed", range(20))
def test_many_hosts_are_chosen_from_greedily_and_nobody_can_be_added(seed):
    dice = random.Random(seed)
    share = dice.uniform(0.05, 0.9)
    names = [f"h{number:02}" for number in range(2 * MAX_EXACT)]
    there = [Candidate(birth, dice.choice(names), dice.random() < 0.1) for birth in range(200)]
    pairs = BadPairs(frozenset(pair for pair in itertools.combinations(names, 2) if dice.random() < share))
    began = time.process_time()
    chosen = choose(there, pairs)
    assert time.process_time() - began < 1
    assert reached_by_all(there, pairs, chosen)
    assert any(one.has_state for one in there if one.birth in chosen) or not any(one.has_state for one in there)
    assert not any(reached_by_all(there, pairs, chosen | {one.birth}) for one in there if one.birth not in chosen)


def test_sixteen_hosts_of_many_workers_that_hardly_reach_each_other_take_no_time():
    names = [f"h{number:02}" for number in range(MAX_EXACT)]
    there = [Candidate(birth, names[birth % MAX_EXACT]) for birth in range(64 * MAX_EXACT)]
    pairs = BadPairs(frozenset(pair for number, pair in enumerate(itertools.combinations(names, 2)) if number % 3))
    began = time.process_time()
    assert reached_by_all(there, pairs, choose(there, pairs))
    assert time.process_time() - began < 1
