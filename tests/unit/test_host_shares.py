# SPDX-License-Identifier: Apache-2.0
"""Division of an exchange among the ranks of hosts: owners of the shares, and splits that match on all ranks."""

import itertools

import pytest

from horovod.common.host_shares import UNIT, HostShares, even_bounds

HOSTS = {
    "two by two": ["a", "a", "b", "b"],
    "unequal": ["a", "a", "b", "b", "b"],
    "interleaved": ["a", "b", "a", "b"],
    "crossed": ["a", "b", "b", "a"],
    "one each": ["a", "b", "c"],
    "one host": ["a", "a"],
}


@pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)
@pytest.mark.parametrize("values", [0, 1, UNIT, 3 * UNIT + 5, 1_000_000])
def test_what_a_rank_sends_is_what_the_others_receive(hosts, values):
    ranks = [HostShares(hosts, me) for me in range(len(hosts))]
    for me, one in enumerate(ranks):
        bounds = one.bounds(values)
        sent = one.splits_to_owners(bounds)
        assert sum(sent) == values
        assert all(hosts[to] == hosts[me] for to, length in enumerate(sent) if length)
        share = 0 if one.mine is None else bounds[one.mine + 1] - bounds[one.mine]
        received = [other.splits_to_owners(bounds)[me] for other in ranks]
        assert received == [share if hosts[other] == hosts[me] else 0 for other in range(len(hosts))]


@pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)
def test_the_owners_of_a_share_are_one_rank_of_each_host(hosts):
    ranks = [HostShares(hosts, me) for me in range(len(hosts))]
    owners = [one for one in ranks if one.mine is not None]
    assert len(owners) == ranks[0].count * ranks[0].hosts
    for one in owners:
        assert one.peers == sorted(one.peers)  # alltoall needs the ranks in ascending order
        assert {hosts[peer] for peer in one.peers} == set(hosts)
        assert all(ranks[peer].mine == one.mine and ranks[peer].peers == one.peers for peer in one.peers)
        assert ranks[one.peers[one.peer_index]] is one


def test_a_rank_that_its_host_has_too_many_of_owns_nothing():
    last = HostShares(HOSTS["unequal"], 4)
    assert (last.count, last.largest, last.mine, last.peers) == (2, 3, None, [])
    assert last.splits_to_peers([]) == [0] * 5
    assert last.splits_to_host(7) == [0, 0, 7, 7, 7]


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
@pytest.mark.parametrize("values", [0, 1, UNIT - 1, UNIT, 10 * UNIT + 1])
def test_parts_begin_at_whole_blocks_and_are_nearly_equal(values, parts):
    bounds = even_bounds(values, parts)
    lengths = [end - start for start, end in itertools.pairwise(bounds)]
    assert (bounds[0], bounds[-1], len(lengths)) == (0, values, parts)
    assert min(lengths) >= 0
    assert all(start % UNIT == 0 or start == values for start in bounds)
    assert max(lengths) - min(lengths) <= 2 * UNIT
