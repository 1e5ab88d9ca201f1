# SPDX-License-Identifier: Apache-2.0
"""Exchanges of one share between hosts by a codec; each is a generator that yields collectives and returns the sum."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from typing import Any, NamedTuple, TypeAlias

import torch

from horovod.common.host_shares import HostShares, even_bounds
from horovod.torch.codecs import Codec, PairCodec
from horovod.torch.codecs.on_host import HostCodec
from horovod.torch.hooks.bucket import Bucket

Tensor = torch.Tensor
Memory: TypeAlias = dict[str, Tensor]  # tensors of a bucket that one rank keeps from step to step, by name


class Exchanged(NamedTuple):
    """Sum over all hosts, and the tensors to keep for the next step if all values of the bucket are finite."""

    total: Tensor
    memory: Memory


Exchange: TypeAlias = Generator[Any, Any, Exchanged]


def in_two_stages(
    bucket: Bucket, share: Tensor, shares: HostShares, codec: Codec, memory: Memory, out: Tensor | None = None
) -> Exchange:
    """Exchange a share that each host's owner has summed, with a codec whose sums have to be encoded again.

    The share's owners, one per host, divide it into chunks. Each owner adds up its chunk of all hosts and sends the sum
    to the others. Both stages lose precision, so there are two residuals. The sum is written to `out`, which may be
    `share`.
    """
    hosts = len(shares.peers)  # 0 on a rank that owns no share; it takes part without values
    cuts = even_bounds(share.numel(), hosts) if hosts else [0]
    lengths = [end - start for start, end in itertools.pairwise(cuts)]
    left, residual = torch.empty_like(share), memory.get("residual")
    wires = [_encoded(codec, share, residual, left, start, end) for start, end in itertools.pairwise(cuts)]
    sent = torch.cat([share.new_empty(0, dtype=torch.uint8), *wires])
    got, _ = yield bucket.alltoall_async(sent, shares.splits_to_peers([it.numel() for it in wires]), stage="chunks")
    mine = lengths[shares.peer_index] if hosts else 0
    chunk = share.new_empty(mine)
    if mine:
        codec.decode_sum(got.view(hosts, -1), mine, 1.0, chunk)
    server_left = torch.empty_like(chunk)
    wire = _encoded(codec, chunk, memory.get("server"), server_left, 0, mine)
    replies, _ = yield bucket.alltoall_async(
        wire.repeat(max(1, hosts))[: wire.numel() * hosts], shares.splits_to_peers([wire.numel()] * hosts), stage="sums"
    )
    total = torch.empty_like(share) if out is None else out
    at = 0
    for start, length, own in zip(cuts, lengths, wires, strict=False):
        if length:
            codec.decode(replies[at : at + own.numel()], length, 1.0, total[start : start + length])
            at += own.numel()
    return Exchanged(total, {"residual": left, "server": server_left})


def of_largest(
    bucket: Bucket, share: Tensor, shares: HostShares, codec: PairCodec, memory: Memory, out: Tensor | None = None
) -> Exchange:
    """Exchange the largest values of a share; each of its owners adds up the messages of all hosts.

    The sum is written to `out`, which may be `share`.
    """
    hosts = len(shares.peers)
    left, residual = torch.empty_like(share), memory.get("residual")
    wire = share.new_empty(0, dtype=torch.uint8)
    if isinstance(codec, HostCodec) and share.numel():
        wire = codec.encode_padded(share, left, residual)
    elif share.numel():
        wire = codec.encode_padded(_corrected(share, residual), left)
    sent = wire.repeat(max(1, hosts))[: wire.numel() * hosts]
    got, _ = yield bucket.alltoall_async(sent, shares.splits_to_peers([wire.numel()] * hosts), stage="largest")
    total = torch.empty_like(share) if out is None else out
    if share.numel():
        codec.decode_sum(got.view(hosts, -1), share.numel(), 1.0, total)
    return Exchanged(total, {"residual": left})


def _corrected(values: Tensor, residual: Tensor | None) -> Tensor:
    """Return the sum of values and residual."""
    return values if residual is None else values + residual.to(values.device)  # a restored residual is in host memory


def _encoded(codec: Codec, share: Tensor, residual: Tensor | None, left: Tensor, start: int, end: int) -> Tensor:
    """Encode values + residual of a part, and write what the message loses to `left`. Return no bytes for no values."""
    values = share[start:end]
    if start == end:
        return values.new_empty(0, dtype=torch.uint8)
    kept = None if residual is None else residual[start:end]
    if isinstance(codec, HostCodec):  # adds the residual while it encodes
        return codec.encode(values, left[start:end], kept)
    return codec.encode(_corrected(values, kept), left[start:end])
