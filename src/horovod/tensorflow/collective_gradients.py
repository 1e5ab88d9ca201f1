# SPDX-License-Identifier: Apache-2.0
"""Gradients of the collectives, as collectives: those of Horovod, which average where a mathematician would sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from horovod.common import rules
from horovod.tensorflow.calls import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER, Call, Tensor

# ways.run, ways.rank and ways.size: given by that module, which stands above this one.
Run = Callable[..., list[Any]]


class Gradients:
    """The rules, over one way to run collectives."""

    def __init__(
        self,
        run: Run,
        rank: Callable[[], Tensor],
        size: Callable[[int], Tensor],
        rows_are_fixed: Callable[[], bool],
    ) -> None:
        """`rows_are_fixed`: whether XLA compiles this. Then shapes are known, and all ranks have the same rows."""
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
        """The gradients with respect to all inputs, an alltoall's splits included."""
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
        # Of the average each rank takes the rows that were its own; where they begin follows from what all ranks gave.
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
        # Rows that the splits left out went nowhere.
        gradient = _pad_rows(back, tf.shape(tensor)[0] - tf.shape(back)[0])
        return [tf.ensure_shape(gradient, tensor.shape), *[None for _ in splits]]

    def _place(self, call: Call) -> Tensor:
        """This rank's index among the members of the set."""
        ranks = call.process_set.ranks
        if call.process_set.process_set_id == 0 or ranks is None:
            return self._rank()
        return tf.argmax(tf.equal(tf.constant(ranks, tf.int32), self._rank()), output_type=tf.int32)


def _pad_rows(tensor: Tensor, rows: Any) -> Tensor:
    padding = tf.concat([[[0, rows]], tf.zeros([tf.rank(tensor) - 1, 2], tf.int32)], axis=0)
    return tf.pad(tensor, padding)


def _drop_padding(tensor: Tensor, rows: int, size: int) -> Tensor:
    """Undo _pad_rows after an allgather: shares differ by one row at most."""
    if rows % size == 0:
        return tensor
    shares = tf.split(tensor, size)
    return tf.concat([share[: rules.rows_of(index, rows, size)] for index, share in enumerate(shares)], axis=0)
