# SPDX-License-Identifier: Apache-2.0
"""Plan of one compressed exchange: what a rank sends to which rank in each of its stages.

The four stages are alltoalls of the whole set: sums within a host, chunks between hosts, sums of chunks between hosts,
and results within a host. `host_shares` explains why. The functions are pure.
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
    """One rank's part of an exchange of a given number of values. Fields are arrays of int32 or a framework's tensors.

    Attributes:
        size: Number of ranks that take part.
        hosts: Number of hosts of these ranks.
        largest: Largest number of ranks on one host.
        here: Number of ranks on this rank's host.
        reduce_splits: Values that each rank receives in the sum within the host.
        share: Number of values in this rank's share; 0 if this rank owns no share.
        cuts: Where each chunk of the share begins, and where the last one ends.
        chunk_splits: Bytes that each rank receives: the message with the chunk that the receiver adds up.
        chunk: Number of values in the chunk that this rank adds up.
        sum_splits: Bytes that each rank receives: the message with the sum of this rank's chunk.
        gather_splits: Values that each rank receives: the result of this rank's share.
        owner: What residuals belong to: begin and end of the share, hosts, and this rank's index among the share's
            owners.
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
        values: Number of values in the buffer.
        message_bytes: Function that returns the length of a message with a given number of values.
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
