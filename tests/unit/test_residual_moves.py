# SPDX-License-Identifier: Apache-2.0
"""Table of which rank gives which part of a residual to which rank, for old and new owners of ranges."""

import numpy as np
import pytest

from horovod.common.host_shares import HostShares
from horovod.common.residual_moves import Holding, Move, length_of, moves, positions, share_and_chunk

D = 8 * 4096
HALF, QUARTER = D // 2, D // 4


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([((0, 10),)], [((0, 10),)], [(0, 0, 0, 10)]),
        # A rank has left and the other one owns all: what the lost rank had is missing.
        ([((0, 5),)], [((0, 10),)], [(0, 0, 0, 5)]),
        # Two ranks owned halves, and now the first one owns all.
        ([((0, 5),), ((5, 10),)], [((0, 10),), ()], [(0, 0, 0, 5), (1, 0, 5, 10)]),
        # A new rank takes over half; ranks have also changed their order.
        ([(), ((0, 10),)], [((0, 5),), ((5, 10),)], [(1, 0, 0, 5), (1, 1, 5, 10)]),
        # Thirds become halves.
        (
            [((0, 4),), ((4, 8),), ((8, 12),)],
            [((0, 6),), ((6, 12),), ()],
            [(0, 0, 0, 4), (1, 0, 4, 6), (1, 1, 6, 8), (2, 1, 8, 12)],
        ),
        # Two ranks have loaded the same state: the first one gives it.
        ([((0, 5),), ((0, 5),)], [((0, 3),), ((3, 6),)], [(0, 0, 0, 3), (0, 1, 3, 5)]),
        ([((4, 8),), ((2, 10),)], [((0, 10),)], [(1, 0, 2, 4), (0, 0, 4, 8), (1, 0, 8, 10)]),
        # Rows of two matrices; a rank has no rows of the second one.
        ([((10, 16), (0, 4)), ((16, 16), (4, 8))], [((10, 16), (0, 8))], [(0, 0, 10, 16), (0, 0, 0, 4), (1, 0, 4, 8)]),
        ([(), ()], [((0, 5),), ()], []),
        ([((3, 3),)], [((2, 2), (0, 3))], []),
    ],
)
def test_table(old, new, expected):
    assert moves(old, new) == [Move(*it) for it in expected]


def test_random_owners_against_values():
    """Each rank's tensor holds the offsets of its ranges; after the moves it must hold those of its new ranges."""
    random = np.random.default_rng(0)
    for _ in range(300):
        count = int(random.integers(1, 60))
        old, new = (cut(random, count, int(random.integers(1, 5))) for _ in range(2))
        if random.random() < 0.5:
            old[int(random.integers(len(old)))] = ()  # a rank has been lost
        owned = {offset for segments in old for start, end in segments for offset in range(start, end)}
        had = [np.concatenate([np.arange(0), *(np.arange(*it) for it in segments)]) for segments in old]
        for receiver, segments in enumerate(new):
            found = np.full(length_of(segments), -1)
            for it in moves(old, new):
                if it.receiver == receiver:
                    found[positions(segments, it.start, it.end)] = had[it.sender][
                        positions(old[it.sender], it.start, it.end)
                    ]
            wanted = [offset if offset in owned else -1 for start, end in segments for offset in range(start, end)]
            assert found.tolist() == wanted


def cut(random, count, ranks):
    """Return random ranges that cover all values, dealt to ranks; a rank may have several or none, in any order."""
    ends = sorted({count, *random.integers(0, count + 1, 6).tolist()})
    segments = list(zip([0, *ends[:-1]], ends, strict=True))
    random.shuffle(segments)
    dealt = random.integers(0, ranks, len(segments))
    return [
        tuple((int(a), int(b)) for (a, b), it in zip(segments, dealt, strict=True) if it == rank)
        for rank in range(ranks)
    ]


@pytest.mark.parametrize(
    ("hosts", "shares", "chunks"),
    [
        ("aabb", [(0, HALF), (HALF, D)] * 2, [(0, QUARTER), (HALF, 3 * QUARTER), (QUARTER, HALF), (3 * QUARTER, D)]),
        ("aab", [(0, D), None, (0, D)], [(0, HALF), None, (HALF, D)]),
        ("ab", [(0, D), (0, D)], [(0, HALF), (HALF, D)]),
    ],
)
def test_owners_of_shares_and_chunks(hosts, shares, chunks):
    found = [share_and_chunk(HostShares(hosts, rank), D) for rank in range(len(hosts))]
    assert [it[0] for it in found] == [() if it is None else (it,) for it in shares]
    assert [it[1] for it in found] == [() if it is None else (it,) for it in chunks]


def test_a_holding_of_another_host_or_buffer_is_left_out():
    held = Holding("a", 10, {"residual": ((0, 10),)})
    assert held.of_same(Holding("a", 10)) is held
    assert held.of_same(Holding("b", 10)) == held.of_same(Holding("a", 11)) == Holding()
    assert Holding.unpacked(held.packed()) == held
    assert held.fits(Holding("a", 10, {"residual": ((0, 10),), "server": ()}), ["residual"])
    assert not held.fits(Holding("a", 10, {"residual": ((0, 5),)}), ["residual"])
