# SPDX-License-Identifier: Apache-2.0
"""MXNet for tests: the module, without its own warnings, and conversion of NumPy arrays."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np

from harness.arrays import Array
from harness.worlds import on_all_ranks

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import mxnet as mx

# MXNet uses deprecated functions of NumPy on many lines.
warnings.filterwarnings("ignore", module="mxnet")

DTYPES = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64")
SHAPES = ((1,), (17,), (5, 3, 7), (1237,))

# The first body in a world imports MXNet on all ranks at once, which takes long on few cores.
on_mxnet_ranks = partial(on_all_ranks, limit_s=120)


def array_of(values: Array) -> Any:
    """Return an mx.nd array with equal elements and dtype."""
    return mx.nd.array(values, dtype=values.dtype)


def arange(*shape: int, dtype: str = "float32") -> Any:
    return array_of(np.arange(np.prod(shape), dtype=dtype).reshape(shape))
