# SPDX-License-Identifier: Apache-2.0
"""Gradients of the collectives, computed by collectives. As in Horovod, some average where a sum would be exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from horovod.common import rules
from horovod.common.calls import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER
from horovod.tensorflow.calls import Call, Tensor

# The functions ways.run, ways.rank and ways.size are passed in, because module ways imports this one.
Run = Callable[..., list[Any]]


class Gradients:
    """Rules for the gradients of each collective, with the functions that run collectives."""

    def __init__(
        self,
        run: Run,
        rank: Callable[[], Tensor],
        size: Callable[[int], Tensor],
        rows_are_fixed: Callable[[], bool],
    ) -> None:
        """Set the functions that the rules use.

        Args:
            rows_are_fixed: Returns True while XLA compiles; then shapes are known and equal on all ranks.
        """
        self._run = run
        self._rows_are_fixed = rows_are_fixed
        self._rank = rank
        self._size = size
        self._rules = {
            ALLREDUCE: self._of_allreduce,
            ALLGATHER: self._of_allgather,
            BROADCAST: self._of_broadcast,
            REDUCESCATTER: self._of_reducescatter,
        }

    def of(
        self, call: Call, inputs: Sequence[Tensor], outputs: Sequence[Tensor], upstream: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """Return the gradients with respect to all inputs; the one for an alltoall's splits is None."""
        call = replace(call, name=None)
        if call.kind == ALLTOALL:
            return self._of_alltoall(call, inputs, outputs, upstream)
        return list(self._rules[call.kind](call, inputs, list(upstream)))

    def _of_allreduce(self, call: Call, inputs: Sequence[Tensor], upstream: list[Tensor]) -> list[Tensor]:
        return self._run(call, upstream)

    def _of_allgather(self, call: Call, inputs: Sequence[Tensor], upstream: list[Tensor]) -> list[Tensor]:
        if self._rows_are_fixed():
            return self._run(replace(call, kind=REDUCESCATTER, op=rules.Average), upstream)
        averages = self._run(replace(call, kind=ALLREDUCE, op=rules.Average), upstream)
        # Each rank's gradient is its own rows of the average; they begin after the rows of the members before it.
        rows = tf.stack([tf.shape(tensor, tf.int64)[0] for tensor in inputs])
        (everyones,) = self._run(replace(call, grouped=False), [rows[tf.newaxis]])
        place = self._place(call)
        starts = tf.reduce_sum(everyones[:place], axis=0)
        return [average[starts[i] : starts[i] + rows[i]] for i, average in enumerate(averages)]

    def _of_broadcast(self, call: Call, inputs: Sequence[Tensor], upstream: list[Tensor]) -> list[Tensor]:
        average = replace(call, kind=ALLREDUCE, op=rules.Average)
        if self._rows_are_fixed():
            return self._run(replace(average, only_root=True), upstream)
        averages = self._run(average, upstream)
        is_root = tf.equal(self._rank(), call.root)
        return [tf.where(is_root, average, tf.zeros_like(average)) for average in averages]

    def _of_reducescatter(self, call: Call, inputs: Sequence[Tensor], upstream: list[Tensor]) -> list[Tensor]:
        factor = call.prescale * call.postscale
        if call.op == rules.Sum:
            size = self._size(call.process_set.process_set_id or 0)
            scaled = [one * tf.cast(tf.cast(size, tf.float64) * factor, one.dtype) for one in upstream]
        else:
            scaled = [one * tf.cast(factor, one.dtype) for one in upstream]
        gather = replace(call, kind=ALLGATHER, op=rules.Sum, prescale=1.0, postscale=1.0)
        if not self._rows_are_fixed():
            return self._run(gather, scaled)
        size = call.process_set.size() or 1
        rows = [tensor.shape[0] for tensor in inputs]
        padded = [_pad_rows(one, -(-count // size) - one.shape[0]) for one, count in zip(scaled, rows, strict=True)]
        gathered = self._run(gather, padded)
        return [_drop_padding(one, count, size) for one, count in zip(gathered, rows, strict=True)]

    def _of_alltoall(
        self, call: Call, inputs: Sequence[Tensor], outputs: Sequence[Tensor], upstream: Sequence[Tensor]
    ) -> list[Tensor | None]:
        tensor, *splits = inputs
        if self._rows_are_fixed():
            return self._run(call, [upstream[0]])[:1]
        back, _ = self._run(call, [upstream[0]], outputs[1])
        # Rows that the splits did not cover were sent to no rank, so their gradient is zero.
        gradient = _pad_rows(back, tf.shape(tensor)[0] - tf.shape(back)[0])
        return [tf.ensure_shape(gradient, tensor.shape), *[None for _ in splits]]

    def _place(self, call: Call) -> Tensor:
        """Return this rank's index among the members of the process set."""
        ranks = call.process_set.ranks
        if call.process_set.process_set_id == 0 or ranks is None:
            return self._rank()
        return tf.argmax(tf.equal(tf.constant(ranks, tf.int32), self._rank()), output_type=tf.int32)


def _pad_rows(tensor: Tensor, rows: Any) -> Tensor:
    padding = tf.concat([[[0, rows]], tf.zeros([tf.rank(tensor) - 1, 2], tf.int32)], axis=0)
    return tf.pad(tensor, padding)


def _drop_padding(tensor: Tensor, rows: int, size: int) -> Tensor:
    """Remove the rows that _pad_rows has added before an allgather; shares differ by at most one row."""
    if rows % size == 0:
        return tensor
    shares = tf.split(tensor, size)
    return tf.concat([share[: rules.rows_of(index, rows, size)] for index, share in enumerate(shares)], axis=0)
