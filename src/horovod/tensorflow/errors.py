# SPDX-License-Identifier: Apache-2.0
"""TensorFlow errors for failures of collectives: equal in eager mode, in graphs and from the native operations."""

from __future__ import annotations

import tensorflow as tf

from horovod.common.exceptions import HorovodInternalError, HorovodMismatchError, HorovodNotInitializedError


class UnknownProcessSetError(tf.errors.InvalidArgumentError, ValueError):  # type: ignore[misc]
    """Error for a process set that is not registered: TensorFlow's type, and the ValueError of the other APIs."""


def as_tensorflow(error: Exception, operation: str) -> Exception:
    """Return the error that users of TensorFlow see; `operation` is the type of the operation that failed."""
    text = f"{operation}: {error}"
    if isinstance(error, (HorovodNotInitializedError, HorovodMismatchError)):
        return tf.errors.FailedPreconditionError(None, None, text)  # type: ignore[no-any-return]
    if isinstance(error, ValueError):
        return tf.errors.InvalidArgumentError(None, None, text)  # type: ignore[no-any-return]
    if isinstance(error, (HorovodInternalError, NotImplementedError)):
        return tf.errors.UnknownError(None, None, text)  # type: ignore[no-any-return]
    return error
