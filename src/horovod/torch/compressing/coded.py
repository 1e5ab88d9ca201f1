# SPDX-License-Identifier: Apache-2.0
"""Exchange for int8, onebit and top-k: a codec encodes each share, and a residual keeps what the encoding loses."""

from __future__ import annotations

from horovod.common.compression_methods import TopK
from horovod.common.host_shares import HostShares
from horovod.common.residual_moves import Segments, share_and_chunk
from horovod.torch.codecs import codec_for, pair_codec_for
from horovod.torch.compressing.exchange import in_two_stages, of_largest
from horovod.torch.compressing.parts import BucketPart, Kept, Reduced
from horovod.torch.compressing.within_host import flat_values, gather_here, summed_here
from horovod.torch.hooks.bucket import Bucket


class CodedPart(BucketPart):
    """State of one bucket whose values travel as messages of a codec."""

    def segments(self, bucket: Bucket, chosen: list[str], shares: HostShares) -> dict[str, Segments]:
        """Return the share, and for codecs that encode sums again also the chunk that the rank adds up."""
        share, chunk = share_and_chunk(shares, sum(bucket.gradients[name].numel() for name in chosen))
        return {"residual": share} if isinstance(self.method, TopK) else {"residual": share, "server": chunk}

    def reduce(self, bucket: Bucket, chosen: list[str], shares: HostShares) -> Reduced:
        """Return the sum of the chosen gradients over all ranks, and the residuals."""
        # `share`, its sum over the hosts and the result all use the memory of the gradients.
        values = flat_values(bucket, chosen)
        bounds = shares.bounds(values.numel())
        share = yield from summed_here(bucket, values, shares, bounds)
        memory = self.memory_of(bucket, chosen, shares)
        if isinstance(self.method, TopK):
            exchange = of_largest(bucket, share, shares, pair_codec_for(self.method, values.device), memory, share)
        else:
            exchange = in_two_stages(bucket, share, shares, codec_for(self.method, values.device), memory, share)
        _, kept = yield from exchange
        yield from gather_here(bucket, values, shares, bounds)
        return values, Kept(kept if self.method.error_feedback else {})
