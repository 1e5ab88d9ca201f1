# SPDX-License-Identifier: Apache-2.0
"""Deep Gradient Compression: sends the largest accumulated velocities; the owner of a share accumulates them."""

from __future__ import annotations

import torch

from horovod.common.compression_methods import Dgc, TopK
from horovod.common.host_shares import HostShares
from horovod.common.residual_moves import Segments, share_and_chunk
from horovod.torch.codecs import pair_codec_for
from horovod.torch.compressing.exchange import of_largest
from horovod.torch.compressing.loss_scale import LossScale
from horovod.torch.compressing.parts import BucketPart, Kept, Reduced, Tensors
from horovod.torch.compressing.within_host import flat_values, gather_here, summed_here
from horovod.torch.hooks.bucket import Bucket

Tensor = torch.Tensor


class DgcPart(BucketPart):
    """State of one bucket: the owner of a share has its velocity; that of dense gradients is equal on all ranks."""

    counts_steps = True

    def __init__(self, method: Dgc, scale: LossScale) -> None:
        super().__init__(method, scale)
        self._dgc = method

    def prepare(self, bucket: Bucket, chosen: list[str]) -> None:
        """Clip the norm of this rank's gradients."""
        if self._dgc.clip is not None:
            limit = self._dgc.clip * (self._loss_scale.current() or 1.0) / bucket.size**0.5
            norm = torch.linalg.vector_norm(bucket.tensor, dtype=torch.float64)
            # An infinite norm gives the factor 0, which turns infinite values into NaN.
            bucket.tensor.mul_((limit / norm).clamp_(max=1.0).to(bucket.tensor.dtype))

    def after_dense(self, bucket: Bucket, total: Tensor) -> Tensor:
        """Return the velocity of a bucket whose ranks are on one host."""
        velocity = self._accelerated(total)
        if bucket.is_finite(velocity):
            self._keep(Kept(shared={"velocity": velocity}))
        return velocity

    def add_dense(self, bucket: Bucket, dense: Tensor, chosen: list[str]) -> Tensors:
        """Turn reduced dense gradients into velocities in place, because the optimizer has no momentum of its own."""
        velocity = self._accelerated(dense)
        dense.copy_(velocity)
        return {"velocity": velocity}

    def segments(self, bucket: Bucket, chosen: list[str], shares: HostShares) -> dict[str, Segments]:
        """Return the share whose velocity and unsent values this rank keeps."""
        share, _ = share_and_chunk(shares, sum(bucket.gradients[name].numel() for name in chosen))
        return {"residual": share, "velocity": share}

    def reduce(self, bucket: Bucket, chosen: list[str], shares: HostShares) -> Reduced:
        """Return the sum of the largest accumulated velocities, and keep the others."""
        values = flat_values(bucket, chosen)
        bounds = shares.bounds(values.numel())
        share = yield from summed_here(bucket, values, shares, bounds)
        memory = self.memory_of(bucket, chosen, shares)
        velocity = share.clone()
        if "velocity" in memory:
            velocity.add_(memory["velocity"].to(share.device), alpha=self._dgc.momentum)
        codec = pair_codec_for(TopK(self._dgc.ratio_at(self.steps)), share.device)
        _, kept = yield from of_largest(bucket, velocity, shares, codec, memory, share)
        velocity.masked_fill_(kept["residual"] == 0, 0.0)  # the whole velocity of these values has been sent
        yield from gather_here(bucket, values, shares, bounds)
        left = {"residual": kept["residual"]} if self.method.error_feedback else {}
        return values, Kept({"velocity": velocity, **left})

    def _accelerated(self, gradients: Tensor) -> Tensor:
        old = self.kept.shared.get("velocity")
        if old is None or old.numel() != gradients.numel():
            return gradients.clone()
        return torch.add(gradients, old.to(gradients), alpha=self._dgc.momentum)
