# SPDX-License-Identifier: Apache-2.0
"""Communication of a training step without a framework: a simulated backward pass yields ResNet-50's 161 gradients.

The computation is a fixed amount of work instead of time, so that a step takes longer if the engine uses its cores.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

import horovod.numpy as hvd

_STAGES = ((64, 256, 3), (128, 512, 4), (256, 1024, 6), (512, 2048, 3))  # width, output channels, blocks
_CLASSES = 1000


def gradient_sizes() -> list[int]:
    """Return the number of elements of each parameter, from the input to the output."""
    return list(_sizes())


def _sizes() -> Iterator[int]:
    yield from _convolution(3, 64, 7)
    channels = 64
    for width, outputs, blocks in _STAGES:
        for block in range(blocks):
            yield from _convolution(channels, width, 1)
            yield from _convolution(width, width, 3)
            yield from _convolution(width, outputs, 1)
            if block == 0:
                yield from _convolution(channels, outputs, 1)
            channels = outputs
    yield from (channels * _CLASSES, _CLASSES)


def _convolution(inputs: int, outputs: int, kernel: int) -> tuple[int, int, int]:
    """Return the sizes of the weights, and of the scale and shift of the batch normalization that follows."""
    return inputs * outputs * kernel * kernel, outputs, outputs


class Training:
    """One rank's part of the training: `step` runs one backward pass and waits for its reduced gradients."""

    def __init__(self, compute_ms: float = 16.0) -> None:
        sizes = gradient_sizes()[::-1]
        self.gradients = [np.full(size, 1.0, np.float32) for size in sizes]
        self.bytes = sum(gradient.nbytes for gradient in self.gradients)
        self._matrix = np.full((48, 48), 1e-3, np.float32)
        self._repeats = max(1, round(compute_ms / 1000 / len(sizes) / self._seconds_of_one()))

    def step(self) -> None:
        handles = []
        for number, gradient in enumerate(self.gradients):
            self._compute()
            handles.append(hvd.allreduce_async_(gradient, name=f"gradient.{number}"))
        for handle in handles:
            hvd.synchronize(handle)

    def measure(self, steps: int) -> float:
        """Return the bytes reduced per second of wall time."""
        started = time.perf_counter()
        for _ in range(steps):
            self.step()
        return self.bytes * steps / (time.perf_counter() - started)

    def _compute(self) -> None:
        for _ in range(self._repeats):
            np.dot(self._matrix, self._matrix)

    def _seconds_of_one(self) -> float:
        times = []
        for _ in range(200):
            started = time.perf_counter()
            np.dot(self._matrix, self._matrix)
            times.append(time.perf_counter() - started)
        return sorted(times)[len(times) // 4]
