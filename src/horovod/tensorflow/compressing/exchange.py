# SPDX-License-Identifier: Apache-2.0
"""Exchange of int8: hosts send each other 8-bit chunks, add them up, and send the sums in 8 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from horovod.common.exchange_plan import Plan
from horovod.common.process_sets import ProcessSet
from horovod.tensorflow import mpi_ops
from horovod.tensorflow.compressing import int8
from horovod.tensorflow.compressing.loops import summed

Tensor: TypeAlias = Any  # tf.Tensor
Residual: TypeAlias = Callable[[str, Tensor, Tensor], Tensor]


class Wire(NamedTuple):
    """Alltoalls of one exchange, with a different name for each stage."""

    name: str | None
    process_set: ProcessSet

    def alltoall(self, values: Tensor, splits: Tensor, stage: str) -> Tensor:
        """Return what the other ranks have sent to this rank."""
        name = self.stage(stage)
        return mpi_ops.alltoall(values, splits, name=name, process_set=self.process_set)[0]

    def stage(self, stage: str) -> str | None:
        """Return the name of a stage's operation."""
        return f"{self.name}.{stage}" if self.name else None


def in_two_stages(
    flat: Tensor, plan: Plan, block: int, wire: Wire, residual: Residual | None, is_spread: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the sum of a flat tensor over all ranks, and the quantization errors of this rank's messages.

    Args:
        residual: Returns the errors of earlier messages, by name, owner and count; None without error feedback.
        is_spread: True if each rank is on a host of its own, so that there is nothing to add up within hosts.
    """
    share = flat if is_spread else _summed_here(flat, plan, wire)
    if residual is not None:
        share += residual("residual", plan.owner, plan.share)
    messages, left = int8.encode_chunks(share, plan.cuts, block)
    got = wire.alltoall(messages, plan.chunk_splits, "chunks")
    length = 4 * ((plan.chunk + block - 1) // block) + plan.chunk
    chunk = int8.decode_sum(tf.reshape(got, [plan.hosts, length]), plan.chunk, block)
    if residual is not None:
        chunk += residual("residual_of_sum", plan.owner, plan.chunk)
    message, sum_left = int8.encode(chunk, block)
    peers = tf.reduce_sum(tf.cast(plan.sum_splits > 0, tf.int32))
    replies = wire.alltoall(tf.tile(message, [peers]), plan.sum_splits, "sums")
    total = int8.decode_chunks(replies, plan.cuts, block)
    kept = {"residual": left, "residual_of_sum": sum_left, "owner": plan.owner}
    if not is_spread:
        total = wire.alltoall(tf.tile(total, [plan.here]), plan.gather_splits, "gather")
    return tf.reshape(total, tf.shape(flat)), kept


def _summed_here(flat: Tensor, plan: Plan, wire: Wire) -> Tensor:
    """Return the sum of this rank's share over the ranks of its host, added in rank order."""
    parts = tf.reshape(wire.alltoall(flat, plan.reduce_splits, "reduce"), [plan.here, plan.share])
    return summed(plan.here, lambda number: parts[number])
