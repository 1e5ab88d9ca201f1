# SPDX-License-Identifier: Apache-2.0
"""DDP hook that sends only the largest values of each bucket, which all ranks gather and add."""

# Annotations have to be objects, because DDP compares a hook's annotations with its own types and rejects strings.
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from horovod.common.compression_methods import TopK
from horovod.torch.codecs import TopKCodec
from horovod.torch.ddp_hooks.bucket import Bucket
from horovod.torch.ddp_hooks.state import Exchange, HookState


class TopKState(HookState):
    """State of `topk_hook`.

    Args:
        ratio: Share of the values that is sent, above 0 and at most 1.
        process_group: Group of the model's DistributedDataParallel; None is the default group.
        error_feedback: Add the values that were not sent in one step to the gradients of the next one.
        min_bytes: Buckets of fewer bytes are sent dense.
    """

    def __init__(
        self,
        ratio: float,
        *,
        process_group: dist.ProcessGroup | None = None,
        error_feedback: bool = True,
        min_bytes: int = 65536,
    ) -> None:
        method = TopK(ratio, error_feedback=error_feedback, scope="all", min_bytes=min_bytes)
        super().__init__(method, process_group)
        self._feedback = method.error_feedback
        self._codec = TopKCodec(method.ratio)

    def exchange(self, bucket: Bucket) -> Exchange:
        """Average a bucket by gathering messages of one length, which saves an exchange of lengths."""
        codec, size, count = self._codec, bucket.size, bucket.count
        p = bucket.corrected()
        wire = codec.encode_padded(p, p if self._feedback else None)
        wires, gathering = bucket.gather(wire)
        yield gathering
        result = torch.empty(count, dtype=torch.float32, device=bucket.device)
        codec.decode_sum(wires, count, 1 / size, result)
        bucket.finish(result, **({"residual": p} if self._feedback else {}))


def topk_hook(state: TopKState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average the largest values of a bucket: `model.register_comm_hook(TopKState(0.01), topk_hook)`."""
    return state.run(bucket)
