# SPDX-License-Identifier: Apache-2.0
"""Compressed exchanges of one matrix on TensorFlow, and the expected values, computed in one process with NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from harness.compressed_exchange import Simulation, int8

SHAPE, STEPS = (160, 130), 4  # five units of 4096 values and a remainder
METHODS = ("int8", "powersgd")


def gradient(rank: int, step: int) -> Any:
    """Return a rank's gradient of a step."""
    return np.random.default_rng(100 * step + rank).standard_normal(SHAPE).astype(np.float32) * (1 + step)


def method_of(hvd: Any, kind: str, **options: Any) -> Any:
    """Return a method; by default it compresses from the first step on, between all ranks."""
    if kind == "powersgd":
        options = {"rank": 3, "start_after": 0, **options}
    return getattr(hvd.Compression, kind)(**{"scope": "all", **options})


class Factors:
    """PowerSGD of one matrix on all ranks; each rank has a residual."""

    def __init__(self, rank: int, size: int, feedback: bool = True) -> None:
        random = np.random.default_rng(0)
        self._q = random.uniform(-1.0, 1.0, SHAPE[1] * rank).astype(np.float32).reshape(SHAPE[1], rank)
        self._left = [np.zeros(SHAPE, np.float32)] * size
        self._feedback = feedback

    def step(self, gradients: Sequence[Any]) -> Any:
        """Return the result on every rank."""
        sent = [one + left for one, left in zip(gradients, self._left, strict=True)] if self._feedback else gradients
        basis = np.linalg.qr(np.mean([one @ self._q for one in sent], 0))[0]
        self._q = np.mean([one.T @ basis for one in sent], 0)
        result = basis @ self._q.T
        self._left = [one - result for one in sent]
        return result


def simulation(hvd: Any, kind: str, hosts: Any = None, feedback: bool = True) -> Any:
    """Return an object whose `step` computes a step of all ranks."""
    if kind == "powersgd":
        return Factors(3, hvd.size(), feedback)
    exchange = Simulation(hosts or list(range(hvd.size())), int8(256), True, feedback)
    return type("Flat", (), {"step": lambda self, all_: exchange.step([it.ravel() for it in all_]).reshape(SHAPE)})()


def expected(hvd: Any, kind: str, steps: Iterable[int], hosts: Any = None, feedback: bool = True) -> list[Any]:
    """Return the reduced gradients of consecutive steps."""
    simulated = simulation(hvd, kind, hosts, feedback)
    return [simulated.step([gradient(rank, step) for rank in range(hvd.size())]) for step in steps]


class Taped:
    """Reduction by tapes of given gradients of one matrix, and of a small vector that is not compressed."""

    def __init__(self, tf: Any, hvd: Any, method: Any, mode: str = "eager", **options: Any) -> None:
        self.variables = [tf.Variable(tf.zeros(SHAPE), name="big"), tf.Variable(tf.zeros([3]), name="small")]

        def step(value: Any) -> Any:
            with hvd.DistributedGradientTape(tf.GradientTape(), compression=method, **options) as tape:
                loss = tf.reduce_sum(self.variables[0] * value) + tf.reduce_sum(self.variables[1]) * (hvd.rank() + 1.0)
            return tape.gradient(loss, self.variables)

        self._step = tf.function(step) if mode == "function" else step
        self._constant = tf.constant

    def step(self, value: Any) -> tuple[Any, Any]:
        """Return the reduced gradients."""
        big, small = self._step(self._constant(value))
        return big.numpy(), small.numpy()
