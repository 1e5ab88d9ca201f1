# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of the TensorFlow API: import without warnings, a small model, data, and training."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from harness.worlds import WORLDS, on_all_ranks, run_by_all_ranks

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

STEPS, BATCH = 4, 8
START_S = 200  # the first body of a world imports TensorFlow on all ranks at once

# Decorator for the tests of a file; each test also needs a pytest.mark.timeout of LIMIT.
on_tensorflow_ranks = partial(on_all_ranks, limit_s=START_S)
LIMIT = START_S + 60


def in_all_modes(limit_s: float = 30) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a test from a body that takes a `mode`: with two ranks in each mode, and with four in one mode."""
    cases = [("shm2", "eager"), ("shm2", "function"), ("shm2", "graph"), ("shm4", "function")]

    def decorate(body: Callable[..., Any]) -> Callable[..., Any]:
        parameters = [pytest.param(WORLDS[world], mode, id=f"{world}-{mode}") for world, mode in cases]
        parametrised = pytest.mark.parametrize(("world", "mode"), parameters, indirect=["world"])
        return parametrised(run_by_all_ranks(body, limit_s))  # type: ignore[no-any-return]

    return decorate


def door() -> tuple[Any, Any]:
    """Return (tensorflow, horovod.tensorflow), on a rank."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow as tf

        import horovod.tensorflow as hvd
    return tf, hvd


def modes() -> list[str]:
    """Return the modes in which a step can run here."""
    from horovod.tensorflow import compiled

    return ["eager", "function", *(["jit"] if compiled.unavailable() is None else [])]


def data() -> tuple[Any, Any]:
    """Return inputs and targets of all steps, equal on all ranks."""
    random = np.random.default_rng(7)
    return random.normal(size=(STEPS, BATCH, 4)), random.normal(size=(STEPS, BATCH))


def share(batch: Any, rank: int, size: int) -> Any:
    """Return this rank's rows of a batch."""
    rows = len(batch) // size
    return batch[rank * rows : (rank + 1) * rows]


def make_variables(tf: Any, seed: int = 3) -> list[Any]:
    random = np.random.default_rng(seed)
    return [tf.Variable(random.normal(size=shape)) for shape in ((4, 6), (6,), (6,))]


def loss_of(tf: Any, variables: Sequence[Any], x: Any, y: Any) -> Any:
    w1, b1, w2 = variables
    hidden = tf.tanh(tf.linalg.matmul(x, w1) + b1)
    return tf.reduce_mean((tf.linalg.matvec(hidden, w2) - y) ** 2)


def train(
    tf: Any, wrap: Callable[[Any], Any], batches: Sequence[tuple[Any, Any]], rate: float = 0.1, mode: str = "eager"
) -> list[Any]:
    """Return the variables after gradient descent with the tapes that `wrap` makes; mode: one of `modes()`."""
    variables = make_variables(tf)

    def step(x: Any, y: Any) -> None:
        with wrap(tf.GradientTape()) as tape:
            loss = loss_of(tf, variables, x, y)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(rate * gradient)

    run = step if mode == "eager" else tf.function(step, jit_compile=mode == "jit")
    for x, y in batches:
        run(tf.constant(x), tf.constant(y))
    return [variable.numpy() for variable in variables]


def check_close(found: Sequence[Any], expected: Sequence[Any], rtol: float = 1e-9, atol: float = 0.0) -> None:
    assert len(found) == len(expected)
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol, err_msg=f"variable {index}")
