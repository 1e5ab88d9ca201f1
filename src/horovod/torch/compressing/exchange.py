# SPDX-License-Identifier: Apache-2.0
"""Exchanges of one share between hosts by a codec. Each is a generator of collectives that returns the sum."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from typing import Any, NamedTuple, TypeAlias

import torch

from horovod.common.host_shares import HostShares, even_bounds
from horovod.torch.codecs import Codec, PairCodec
from horovod.torch.hooks.bucket import Bucket

Tensor = torch.Tensor
Memory: TypeAlias = dict[str, Tensor]  # what one rank keeps of a bucket from step to step, by name


class Exchanged(NamedTuple):
    """The sum over all hosts, and what the next step needs if all of the bucket is finite."""

    total: Tensor
    memory: Memory


Exchange: TypeAlias = Generator[Any, Any, Exchanged]


def in_two_stages(bucket: Bucket, share: Tensor, shares: HostShares, codec: Codec, memory: Memory) -> Exchange:
    """Exchange a share that each host's owner has summed, in messages of codecs whose sums need a codec again.

    The owners of a share divide it into chunks. Each adds up one chunk of all hosts and sends the sum to the others.
    A message loses something in both stages, so there are two residuals.
    """
    hosts = len(shares.peers)  # 0 on a rank without a share, which takes part without values
    cuts = even_bounds(share.numel(), hosts) if hosts else [0]
    lengths = [end - start for start, end in itertools.pairwise(cuts)]
    left = _corrected(share, memory.get("residual"))
    wires = [_encoded(codec, left[start : start + length]) for start, length in zip(cuts, lengths, strict=False)]
    sent = torch.cat([share.new_empty(0, dtype=torch.uint8), *wires])
    got, _ = yield bucket.alltoall_async(sent, shares.splits_to_peers([it.numel() for it in wires]), stage="chunks")
    mine = lengths[shares.peer_index] if hosts else 0
    chunk = share.new_empty(mine)
    if mine:
        codec.decode_sum(got.view(hosts, -1), mine, 1.0, chunk)
    server_left = _corrected(chunk, memory.get("server"))
    wire = _encoded(codec, server_left)
    replies, _ = yield bucket.alltoall_async(
        wire.repeat(max(1, hosts))[: wire.numel() * hosts], shares.splits_to_peers([wire.numel()] * hosts), stage="sums"
    )
    total = torch.empty_like(share)
    at = 0
    for start, length, own in zip(cuts, lengths, wires, strict=False):
        if length:
            codec.decode(replies[at : at + own.numel()], length, 1.0, total[start : start + length])
            at += own.numel()
    return Exchanged(total, {"residual": left, "server": server_left})


def of_largest(bucket: Bucket, share: Tensor, shares: HostShares, codec: PairCodec, memory: Memory) -> Exchange:
    """Exchange the largest values of a share, which every owner of the share adds up by itself."""
    hosts = len(shares.peers)
    left = _corrected(share, memory.get("residual"))
    wire = codec.encode_padded(left, left) if left.numel() else share.new_empty(0, dtype=torch.uint8)
    sent = wire.repeat(max(1, hosts))[: wire.numel() * hosts]
    got, _ = yield bucket.alltoall_async(sent, shares.splits_to_peers([wire.numel()] * hosts), stage="largest")
    total = torch.empty_like(share)
    if share.numel():
        codec.decode_sum(got.view(hosts, -1), share.numel(), 1.0, total)
    return Exchanged(total, {"residual": left})


def _corrected(values: Tensor, residual: Tensor | None) -> Tensor:
    """Return values and residual added, in memory of its own."""
    return values.clone() if residual is None else values + residual.to(values.device)  # restored ones are on the host


def _encoded(codec: Codec, values: Tensor) -> Tensor:
    """Return a message, and leave in `values` what it lacks; nothing for no values."""
    return codec.encode(values, values) if values.numel() else values.new_empty(0, dtype=torch.uint8)
