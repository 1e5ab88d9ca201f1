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

    def __init__(self, run: Run, rank: Callable[[], Tensor], size: Callable[[int], Tensor]) -> None:
        self._run = run
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
        averages = self._run(replace(call, kind=ALLREDUCE, op=rules.Average), upstream)
        # Of the average each rank takes the rows that were its own; where they begin follows from what all ranks gave.
        rows = tf.stack([tf.shape(tensor, tf.int64)[0] for tensor in inputs])
        (everyones,) = self._run(replace(call, grouped=False), [rows[tf.newaxis]])
        place = self._place(call)
        starts = tf.reduce_sum(everyones[:place], axis=0)
        return [average[starts[i] : starts[i] + rows[i]] for i, average in enumerate(averages)]

    def _of_broadcast(self, call: Call, inputs: Sequence[Tensor], upstream: list[Tensor]) -> list[Tensor]:
        averages = self._run(replace(call, kind=ALLREDUCE, op=rules.Average), upstream)
        is_root = tf.equal(self._rank(), call.root)
        return [tf.where(is_root, average, tf.zeros_like(average)) for average in averages]

    def _of_reducescatter(self, call: Call, inputs: Sequence[Tensor], upstream: list[Tensor]) -> list[Tensor]:
        factor = call.prescale * call.postscale
        if call.op == rules.Sum:
            size = self._size(call.process_set.process_set_id or 0)
            scaled = [one * tf.cast(tf.cast(size, tf.float64) * factor, one.dtype) for one in upstream]
        else:
            scaled = [one * tf.cast(factor, one.dtype) for one in upstream]
        return self._run(replace(call, kind=ALLGATHER, op=rules.Sum, prescale=1.0, postscale=1.0), scaled)

    def _of_alltoall(
        self, call: Call, inputs: Sequence[Tensor], outputs: Sequence[Tensor], upstream: Sequence[Tensor]
    ) -> list[Tensor | None]:
        tensor, *splits = inputs
        back, _ = self._run(call, [upstream[0]], outputs[1])
        # Rows that the splits left out went nowhere.
        missing = tf.shape(tensor)[0] - tf.shape(back)[0]
        padding = tf.concat([[[0, missing]], tf.zeros([tf.rank(back) - 1, 2], tf.int32)], axis=0)
        gradient = tf.ensure_shape(tf.pad(back, padding), tensor.shape)
        return [gradient, *[None for _ in splits]]

    def _place(self, call: Call) -> Tensor:
        """This rank's index among the members of the set."""
        ranks = call.process_set.ranks
        if call.process_set.process_set_id == 0 or ranks is None:
            return self._rank()
        return tf.argmax(tf.equal(tf.constant(ranks, tf.int32), self._rank()), output_type=tf.int32)
