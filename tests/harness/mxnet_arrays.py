# SPDX-License-Identifier: Apache-2.0
"""MXNet for tests: the module itself, whose warnings are its own affair, and NumPy arrays as its arrays."""

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

# It goes on using what NumPy deprecates, line by line.
warnings.filterwarnings("ignore", module="mxnet")

DTYPES = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64")
SHAPES = ((1,), (17,), (5, 3, 7), (1237,))

# The first body in a world imports MXNet, all ranks at once: that takes its time on few cores.
on_mxnet_ranks = partial(on_all_ranks, limit_s=120)


def array_of(values: Array) -> Any:
    """An mx.nd array with the same elements, of the same dtype."""
    return mx.nd.array(values, dtype=values.dtype)


def arange(*shape: int, dtype: str = "float32") -> Any:
    return array_of(np.arange(np.prod(shape), dtype=dtype).reshape(shape))
