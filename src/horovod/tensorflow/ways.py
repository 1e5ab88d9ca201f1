# SPDX-License-Identifier: Apache-2.0
"""The way that a collective takes: native operations, or through Python where those cannot be loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.tensorflow import through_python
from horovod.tensorflow.calls import Call, Tensor
from horovod.tensorflow.collective_gradients import Gradients


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def run(call: Call, tensors: Sequence[Tensor], splits: Tensor | None = None) -> list[Tensor]:
    """The results, in the order of the tensors; an alltoall's are its output and the received splits."""

    def collective(*inputs: Tensor) -> tuple[Any, Any]:
        outputs = through_python.run(call, inputs[: len(tensors)], None if splits is None else inputs[-1])

        def gradient(*upstream: Tensor) -> list[Tensor | None]:
            return gradients.of(call, inputs, outputs, upstream)

        return outputs, gradient

    return list(tf.custom_gradient(collective)(*tensors, *([] if splits is None else [splits])))


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def join() -> Tensor:
    return through_python.join()


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def topology(question: str, process_set_id: int = 0) -> Tensor:
    """size, rank, local_size, local_rank or process_set_included as it is when the graph runs."""
    return through_python.topology(question, process_set_id)


gradients = Gradients(run, lambda: topology("rank"), lambda set_id: topology("size", set_id))
