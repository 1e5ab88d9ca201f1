# SPDX-License-Identifier: Apache-2.0
"""MXNet arrays as the door sees them: handle, shape, dtype. Where elements are is known only when MXNet gets there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import mxnet as mx
import numpy as np

from horovod._engine import Output
from horovod.common.arrays import NumpyAdapter
from horovod.common.dtypes import ID_BY_DTYPE
from horovod.common.ops import Description

NDArray = Any  # mx.nd.NDArray; MXNet has no types


class MXNetAdapter:
    """See horovod.common.ops.Adapter; for an address stands the array's handle."""

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
        raise NotImplementedError("the sizes of all results are known in advance here")

    @staticmethod
    def split_sizes(splits: Any) -> list[int]:
        values = splits.asnumpy() if isinstance(splits, mx.nd.NDArray) else splits
        return NumpyAdapter.split_sizes(values)

    @staticmethod
    def splits_tensor(received: Sequence[int], splits: Any) -> NDArray:
        values = NumpyAdapter.splits_tensor(received, splits)
        return mx.nd.array(values, dtype=values.dtype)


def empty(like: NDArray, shape: tuple[int, ...]) -> NDArray:
    """A new array of the same kind (mx.nd or mx.np), dtype and context."""
    if isinstance(like, mx.np.ndarray):
        return mx.np.empty(shape, dtype=like.dtype, ctx=like.context)
    if 0 not in shape:
        return mx.nd.empty(shape, ctx=like.context, dtype=like.dtype)
    with mx.util.np_shape(True):  # else a 0 in a shape stands for "not known yet"
        return mx.nd.empty(shape, ctx=like.context, dtype=like.dtype)


def refuse(array: Any) -> NoReturn:
    """Say why the engine cannot work on an array."""
    if not isinstance(array, mx.nd.NDArray):
        raise ValueError(f"Expected an mxnet.nd.NDArray, not {type(array).__name__}")
    if array.stype != "default":
        raise ValueError(f"Expected a dense array, not one with stype {array.stype}; pass array.tostype('default')")
    raise ValueError(f"Arrays on {array.context} are not supported; pass array.as_in_context(mx.cpu())")
