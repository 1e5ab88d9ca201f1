# SPDX-License-Identifier: Apache-2.0
"""DDP hook that sends two small factors of each matrix of gradients (PowerSGD)."""

# Annotations have to be objects, because DDP compares a hook's annotations with its own types and rejects strings.
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from horovod.common.compression_methods import PowerSGD
from horovod.torch.codecs.low_rank import Factors
from horovod.torch.ddp_hooks.bucket import Bucket
from horovod.torch.ddp_hooks.state import Exchange, HookState, average_dense

_SEED_STRIDE = 1_000_003  # distance between the seeds of steps; larger than any number of buckets


class PowerSGDState(HookState):
    """State of `powersgd_hook`.

    Args:
        rank: Columns of each factor, at least 1.
        start_after: Steps whose gradients are sent dense before the first one that is compressed.
        min_rate: Leave an n by m matrix dense if n * m < min_rate * rank * (n + m).
        seed: Seed of the first factor.
        warm_start: Begin each step with the factors of the last one. Otherwise each step begins with random ones.
        process_group: Group of the model's DistributedDataParallel; None is the default group.
        error_feedback: Add what compression has lost in one step to the gradients of the next one.
        min_bytes: Buckets of fewer bytes are sent dense.
    """

    def __init__(
        self,
        rank: int = 4,
        start_after: int = 100,
        *,
        min_rate: float = 1.0,
        seed: int = 0,
        warm_start: bool = True,
        process_group: dist.ProcessGroup | None = None,
        error_feedback: bool = True,
        min_bytes: int = 65536,
    ) -> None:
        self._power = PowerSGD(
            rank, start_after, min_rate, seed, error_feedback=error_feedback, scope="all", min_bytes=min_bytes
        )
        super().__init__(self._power, process_group)
        self._feedback = self._power.error_feedback
        self._warm_start = bool(warm_start)

    def describe(self) -> str:
        """Return the method and its arguments as a text, which ranks compare."""
        return f"{super().describe()}, warm_start={self._warm_start}"

    def exchange(self, bucket: Bucket) -> Exchange:
        """Average the P factors and the dense rest of a bucket, then the Q factors."""
        factors = Factors(bucket.memory.shapes, self._power)
        if self.step < self._power.start_after or not factors.matrices:
            yield from average_dense(bucket)
            return
        size, device = bucket.size, bucket.device
        m = bucket.corrected()
        q = bucket.remembered("q", factors.q_count) if self._warm_start else None
        if q is None:
            step = 0 if self._warm_start else self.step
            q = factors.first_q(self._power.seed + _SEED_STRIDE * step + bucket.index, device)
        message = torch.empty(factors.dense_count + factors.p_count, dtype=torch.float32, device=device)
        dense, p = message[: factors.dense_count], message[factors.dense_count :]
        if factors.dense:
            torch.cat([m[offset : offset + length] for offset, length in factors.dense], out=dense)
        factors.multiply(m, q, p)
        yield dist.all_reduce(message, group=bucket.group, async_op=True)
        message.div_(size)
        factors.orthonormalise(p)
        q = torch.empty_like(q)
        factors.multiply_transposed(m, p, q)
        yield dist.all_reduce(q, group=bucket.group, async_op=True)
        q.div_(size)
        result = torch.empty_like(m)
        factors.restore(p, q, result)
        at = 0
        for offset, length in factors.dense:
            result[offset : offset + length] = dense[at : at + length]
            m[offset : offset + length] = result[offset : offset + length]  # no residual: dense values are exact
            at += length
        memory = {"residual": m.sub_(result)} if self._feedback else {}
        if self._warm_start:
            memory["q"] = q
        bucket.finish(result, **memory)


def powersgd_hook(state: PowerSGDState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average factors of a bucket's matrices: `model.register_comm_hook(PowerSGDState(), powersgd_hook)`."""
    return state.run(bucket)
