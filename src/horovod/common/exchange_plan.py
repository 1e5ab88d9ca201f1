# SPDX-License-Identifier: Apache-2.0
"""The numbers of one compressed exchange: what a rank sends to which rank in each of its stages. Pure.

The four stages are alltoalls of the whole set: sums within a host, chunks between hosts, sums of chunks between hosts,
and results within a host. `host_shares` says why.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from horovod.common.host_shares import HostShares, even_bounds

Numbers: TypeAlias = npt.NDArray[np.int32]


class Plan(NamedTuple):
    """One rank's part of an exchange of so many values. Fields are arrays of int32, or tensors that a framework makes.

    Attributes:
        size: Ranks that take part.
        hosts: Hosts that they are on.
        largest: The most ranks that one host has.
        here: Ranks on this rank's host.
        reduce_splits: Values for each rank in the sum within the host.
        share: Values of this rank's share; 0 if its host has more ranks than shares.
        cuts: Where the chunks of the share begin, and the end.
        chunk_splits: Bytes for each rank: the message with the chunk that the rank adds up.
        chunk: Values of the chunk that this rank adds up.
        sum_splits: Bytes for each rank: the message with the sum of this rank's chunk.
        gather_splits: Values for each rank: the result of this rank's share.
        owner: What residuals belong to: begin and end of the share, hosts, and this rank's place among the owners.
    """

    size: Any
    hosts: Any
    largest: Any
    here: Any
    reduce_splits: Any
    share: Any
    cuts: Any
    chunk_splits: Any
    chunk: Any
    sum_splits: Any
    gather_splits: Any
    owner: Any


def plan_of(hosts: Sequence[str], me: int, values: int, message_bytes: Callable[[int], int]) -> Plan:
    """Return the plan of one rank.

    Args:
        hosts: The host of each rank of the set. With scope="all", each rank counts as a host of its own.
        me: This rank's index in the set.
        values: Values of the buffer.
        message_bytes: Returns the length of a message of so many values.
    """
    shares = HostShares(hosts, me)
    bounds = shares.bounds(values)
    first, last = (0, 0) if shares.mine is None else bounds[shares.mine : shares.mine + 2]
    cuts = even_bounds(last - first, shares.hosts)
    lengths = [end - start for start, end in itertools.pairwise(cuts)]
    chunk = lengths[shares.peer_index] if shares.peers else 0
    messages = [message_bytes(length) for length in lengths] if shares.peers else []
    fields = Plan(
        size=len(hosts),
        hosts=shares.hosts,
        largest=shares.largest,
        here=len(shares.here),
        reduce_splits=shares.splits_to_owners(bounds),
        share=last - first,
        cuts=cuts,
        chunk_splits=shares.splits_to_peers(messages),
        chunk=chunk,
        sum_splits=shares.splits_to_peers([message_bytes(chunk)] * len(shares.peers)),
        gather_splits=shares.splits_to_host(last - first),
        owner=[first, last, shares.hosts, shares.peer_index],
    )
    return Plan(*(np.asarray(field, np.int32) for field in fields))
