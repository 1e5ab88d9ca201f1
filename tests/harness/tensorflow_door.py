# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of the TensorFlow API: run functions of dictionaries in all modes, with NumPy results."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # old versions use deprecated functions of NumPy and Python
    import tensorflow as tf

    import horovod.tensorflow.mpi_ops as hvd
    from horovod.tensorflow import compiled, ways

import numpy as np

from harness.arrays import Array, check_equal

MODES = ("eager", "function", "graph")


def session(graph: Any, **config: Any) -> Any:
    return tf.compat.v1.Session(graph=graph, config=tf.compat.v1.ConfigProto(**config))


def run(mode: str, function: Callable[..., Any], values: Any = ()) -> Any:
    """Run a function of tensors, shaped like `values`, in eager mode, in tf.function or in a v1 graph."""
    if mode == "graph":
        graph = tf.Graph()
        with graph.as_default(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            holders = tf.nest.map_structure(lambda one: tf.compat.v1.placeholder(one.dtype, one.shape), values)
            result = function(holders) if values else function()
            feed = dict(zip(tf.nest.flatten(holders), tf.nest.flatten(values), strict=True))
            with session(graph) as opened:
                return opened.run(result, feed)
    if mode != "eager":
        function = tf.function(function, autograph=False, jit_compile=True if mode == "jit" else None)
    tensors = tf.nest.map_structure(tf.constant, values)
    return tf.nest.map_structure(np.asarray, function(tensors) if values else function())


def check_all(results: Mapping[str, Array], expected: Mapping[str, Array]) -> str:
    """Compare every result with NumPy's; return digests of the bits, for the comparison between ranks."""
    assert results.keys() == expected.keys()
    digests = []
    for name, value in results.items():
        try:
            digests.append(check_equal(np.asarray(value), expected[name]))
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None
    return " ".join(digests)


__all__ = ["MODES", "check_all", "compiled", "hvd", "np", "run", "session", "tf", "ways"]
