# SPDX-License-Identifier: Apache-2.0
"""Copies of a distributed optimizer: Keras 3's are not distributed, with a warning; Keras 2's raise an error."""

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
    """Raise TypeError with a remedy, because Keras 2 would fail or make a copy that shares state."""
    raise TypeError(_NO_COPY.format(name=optimizer.__class__.__name__))


def plain_copy(optimizer: Any, reduced: Any) -> Any:
    """Warn, and return the arguments from which copy and pickle make an optimizer of the original class.

    Args:
        reduced: Result of `__reduce_ex__` of the original class.
    """
    original = optimizer.__class__  # a distributed optimizer reports the original class as its own
    user_warnings.warn(_PLAIN_COPY.format(name=original.__name__))
    maker, *arguments = reduced
    if getattr(maker, "__self__", None) is type(optimizer):  # pickle can import only the original class by name
        maker = getattr(original, maker.__name__)
    return maker, *arguments
