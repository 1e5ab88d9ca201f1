# SPDX-License-Identifier: Apache-2.0
"""DDP hook that sends eight bits per value in two stages: each rank averages its share, then all ranks gather these."""

# Annotations have to be objects, because DDP compares a hook's annotations with its own types and rejects strings.
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from horovod.common.compression_methods import Int8
from horovod.torch.codecs import Int8Codec
from horovod.torch.ddp_hooks.bucket import Bucket
from horovod.torch.ddp_hooks.state import Exchange, HookState


class Int8State(HookState):
    """State of `int8_hook`.

    Args:
        block: Values that share a scale, a multiple of 16 from 16 to 65536.
        process_group: Group of the model's DistributedDataParallel; None is the default group.
        error_feedback: Add what compression has lost in one step to the gradients of the next one.
        min_bytes: Buckets of fewer bytes are sent dense.
    """

    def __init__(
        self,
        block: int = 256,
        *,
        process_group: dist.ProcessGroup | None = None,
        error_feedback: bool = True,
        min_bytes: int = 65536,
    ) -> None:
        method = Int8(block, error_feedback=error_feedback, scope="all", min_bytes=min_bytes)
        super().__init__(method, process_group)
        self._feedback = method.error_feedback
        self._codec = Int8Codec(method.block)

    def exchange(self, bucket: Bucket) -> Exchange:
        """Average a bucket in which each rank owns one share of whole blocks."""
        codec, size, count = self._codec, bucket.size, bucket.count
        share = -(-count // (size * codec.block)) * codec.block
        p = bucket.corrected(size * share)
        wires = codec.encode_rows(p.view(size, share), p.view(size, share) if self._feedback else None)
        received = torch.empty_like(wires)
        yield dist.all_to_all_single(received, wires, group=bucket.group, async_op=True)
        average = torch.empty(share, dtype=torch.float32, device=bucket.device)
        codec.decode_sum(received, share, 1 / size, average)
        owned = bucket.remembered("owned", share)
        if owned is not None:
            average.add_(owned)
        wire = codec.encode(average, average if self._feedback else None)
        wires, gathering = bucket.gather(wire)
        yield gathering
        result = torch.empty(size, share, dtype=torch.float32, device=bucket.device)
        codec.decode_rows(wires, result)
        memory = {"residual": p[:count], "owned": average} if self._feedback else {}
        bucket.finish(result.view(-1)[:count], **memory)


def int8_hook(state: Int8State, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of DistributedDataParallel as int8: `model.register_comm_hook(Int8State(), int8_hook)`."""
    return state.run(bucket)
