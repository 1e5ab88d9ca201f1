# SPDX-License-Identifier: Apache-2.0
"""Flat gradients of a bucket, and the stages of an exchange in which the ranks of one host exchange them dense."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch

from horovod.common.host_shares import HostShares
from horovod.torch.hooks.bucket import Bucket

Tensor = torch.Tensor


def flat_values(bucket: Bucket, names: list[str]) -> Tensor:
    """Return gradients as one flat float32 tensor, which may be changed; without a copy if they are adjacent."""
    views = [bucket.gradients[name] for name in names]
    begin = at = views[0].storage_offset()
    for view in views:
        if view.storage_offset() != at or not is_in_place(view, bucket):
            return joined(views).float()
        at += view.numel()
    first = begin - bucket.tensor.storage_offset()
    return bucket.tensor[first : first + at - begin].float()


def is_in_place(tensor: Tensor, bucket: Bucket) -> bool:
    """Return True if a tensor lies in the memory of the bucket."""
    return tensor.untyped_storage().data_ptr() == bucket.tensor.untyped_storage().data_ptr()


def summed_here(bucket: Bucket, values: Tensor, shares: HostShares, bounds: list[int]) -> Generator[Any, Any, Tensor]:
    """Sum this rank's share over the ranks of its host in place. Return the share's part of `values`."""
    if shares.largest == 1:
        return values
    splits = shares.splits_to_owners(bounds)
    if shares.mine is None:
        yield bucket.alltoall_async(values, splits, stage="reduce")
        return values[:0]
    first, end = bounds[shares.mine], bounds[shares.mine + 1]
    splits[bucket.rank] = 0  # its own part need not be sent
    parts = [part for part in (values[:first], values[end:]) if part.numel()]
    sent = parts[0] if len(parts) == 1 else torch.cat([values[:0], *parts])
    got, _ = yield bucket.alltoall_async(sent, splits, stage="reduce")
    mine = values[first:end]
    others = list(got.view(len(shares.here) - 1, end - first))
    total = mine if shares.mine == 0 else others[0]
    # Add in the order of the ranks, because the order decides how the sum is rounded.
    for part in [*others[: shares.mine], mine, *others[shares.mine :]][1:]:
        total = mine.add_(total) if part is mine else total.add_(part)
    return mine


def gather_here(bucket: Bucket, values: Tensor, shares: HostShares, bounds: list[int]) -> Generator[Any, Any, None]:
    """Fill `values` with the shares of all owners on this rank's host. The rank's own share is already in place."""
    if shares.largest == 1:
        return
    mine = values[:0] if shares.mine is None else values[bounds[shares.mine] : bounds[shares.mine + 1]]
    splits = shares.splits_to_host(mine.numel())
    splits[bucket.rank] = 0
    others = len(shares.here) - 1
    got, _ = yield bucket.alltoall_async(mine if others == 1 else mine.repeat(others), splits, stage="gather")
    at = 0
    for share in range(shares.count):
        if share != shares.mine:
            length = bounds[share + 1] - bounds[share]
            values[bounds[share] : bounds[share + 1]].copy_(got[at : at + length])
            at += length


def joined(tensors: list[Tensor]) -> Tensor:
    """Return the values of tensors as one flat tensor."""
    return torch.cat([it.reshape(-1) for it in tensors])


def divide(flat: Tensor, targets: list[Tensor]) -> None:
    """Copy consecutive parts of a flat tensor to tensors."""
    for target, part in zip(targets, torch.split(flat, [it.numel() for it in targets]), strict=True):
        target.copy_(part.view_as(target))
