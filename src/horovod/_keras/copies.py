# SPDX-License-Identifier: Apache-2.0
"""Copies of a distributed optimizer: those of Keras 3 are plain optimizers, and a warning says so; Keras 2 has none."""

from __future__ import annotations

from typing import Any, NoReturn

from horovod.common import user_warnings

_PLAIN_COPY = (
    "A copy of a hvd.DistributedOptimizer, made by copy or by pickle, is a plain {name}: it does not reduce gradients. "
    "Before you train with the copy, wrap it with hvd.DistributedOptimizer(copy)."
)
_NO_COPY = (
    "A hvd.DistributedOptimizer of Keras 2 cannot be copied or pickled. Make another one: "
    "hvd.DistributedOptimizer({name}.from_config(optimizer.get_config())). It begins without state: to keep that, save "
    "the model, or write a tf.train.Checkpoint."
)


def refuse_copy(optimizer: Any) -> NoReturn:
    """Raise TypeError with the remedy: Keras 2 itself would fail, or make a copy that shares state."""
    raise TypeError(_NO_COPY.format(name=optimizer.__class__.__name__))


def plain_copy(optimizer: Any, reduced: Any) -> Any:
    """Warn, and return what copy and pickle make an optimizer of the original class from.

    Args:
        reduced: what `__reduce_ex__` of the original class returns.
    """
    original = optimizer.__class__  # which a distributed optimizer says it has
    user_warnings.warn(_PLAIN_COPY.format(name=original.__name__))
    maker, *arguments = reduced
    if getattr(maker, "__self__", None) is type(optimizer):  # pickle finds only the original class by its name
        maker = getattr(original, maker.__name__)
    return maker, *arguments
