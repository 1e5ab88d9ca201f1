# SPDX-License-Identifier: Apache-2.0
"""MXNet arrays as this API sees them: handle, shape, dtype.

The address of an array's memory is known only when MXNet runs the operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import mxnet as mx
import numpy as np

from horovod._engine import Output
from horovod.common.arrays import NumpyAdapter
from horovod.common.dtypes import ID_BY_DTYPE
from horovod.common.ops import Description

NDArray = Any  # mx.nd.NDArray; MXNet has no type hints


class MXNetAdapter:
    """Implementation of horovod.common.ops.Adapter. The array's handle is used in place of an address."""

    @staticmethod
    def source(array: NDArray) -> Description:
        if not isinstance(array, mx.nd.NDArray) or array.stype != "default" or array.context.device_type == "gpu":
            refuse(array)
        return int(array.handle.value), tuple(array.shape), ID_BY_DTYPE[np.dtype(array.dtype)]

    target = source

    @staticmethod
    def empty(like: NDArray, shape: tuple[int, ...]) -> tuple[NDArray, int]:
        array = empty(like, shape)
        return array, int(array.handle.value)

    @staticmethod
    def adopt(memory: Output, like: NDArray, rows: int) -> NDArray:
        raise NotImplementedError(
            "MXNet's results never need memory of the engine, because their sizes are known in advance"
        )

    @staticmethod
    def split_sizes(splits: Any) -> list[int]:
        values = splits.asnumpy() if isinstance(splits, mx.nd.NDArray) else splits
        return NumpyAdapter.split_sizes(values)

    @staticmethod
    def splits_tensor(received: Sequence[int], splits: Any) -> NDArray:
        values = NumpyAdapter.splits_tensor(received, splits)
        return mx.nd.array(values, dtype=values.dtype)


def empty(like: NDArray, shape: tuple[int, ...]) -> NDArray:
    """Return a new array of the kind (mx.nd or mx.np), dtype and context of `like`."""
    if isinstance(like, mx.np.ndarray):
        return mx.np.empty(shape, dtype=like.dtype, ctx=like.context)
    if 0 not in shape:
        return mx.nd.empty(shape, ctx=like.context, dtype=like.dtype)
    with mx.util.np_shape(True):  # otherwise a 0 in a shape means "not known yet"
        return mx.nd.empty(shape, ctx=like.context, dtype=like.dtype)


def refuse(array: Any) -> NoReturn:
    """Raise the error that explains why the engine cannot work on an array."""
    if not isinstance(array, mx.nd.NDArray):
        raise ValueError(f"Expected an mxnet.nd.NDArray, not {type(array).__name__}")
    if array.stype != "default":
        raise ValueError(f"Expected a dense array, not one with stype {array.stype}; pass array.tostype('default')")
    raise ValueError(f"Arrays on {array.context} are not supported; pass array.as_in_context(mx.cpu())")
