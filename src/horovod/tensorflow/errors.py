# SPDX-License-Identifier: Apache-2.0
"""Which of TensorFlow's errors a failure becomes: the same, eagerly and in graphs, as from the native operations."""

from __future__ import annotations

import tensorflow as tf

from horovod.common.exceptions import HorovodInternalError, HorovodMismatchError, HorovodNotInitializedError


class UnknownProcessSetError(tf.errors.InvalidArgumentError, ValueError):  # type: ignore[misc]
    """A process set that is not registered: TensorFlow's error for it, and that of all other APIs."""


def as_tensorflow(error: Exception, operation: str) -> Exception:
    """The error that users of TensorFlow see; `operation` is the type of the operation that failed."""
    text = f"{operation}: {error}"
    if isinstance(error, (HorovodNotInitializedError, HorovodMismatchError)):
        return tf.errors.FailedPreconditionError(None, None, text)  # type: ignore[no-any-return]
    if isinstance(error, ValueError):
        return tf.errors.InvalidArgumentError(None, None, text)  # type: ignore[no-any-return]
    if isinstance(error, (HorovodInternalError, NotImplementedError)):
        return tf.errors.UnknownError(None, None, text)  # type: ignore[no-any-return]
    return error
