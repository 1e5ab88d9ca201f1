# SPDX-License-Identifier: Apache-2.0
"""Reference of local SGD and DiLoCo in NumPy: all workers in one process, with the wire formats' rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from horovod.common.local_sgd.fragments import divide, split
from horovod.common.local_sgd.options import Options
from horovod.common.local_sgd.wire import decode, encode

Floats = npt.NDArray[np.float32]
InnerStep = Callable[[int, int, dict[str, Floats]], None]


def rounded(values: Floats, wire: str, parts: int) -> Floats:
    """Return values after a way over the wire, range by range."""
    return np.concatenate([decode(encode(values[b:e], wire), e - b, wire) for b, e in split(0, values.size, parts)])


class Reference:
    """Workers that train in one process. `models` has the weights of each worker by name."""

    def __init__(self, weights: dict[str, Floats], workers: int, options: Options, inner: InnerStep) -> None:
        self.options, self.inner, self.round, self.steps = options, inner, 0, 0
        self.models = [{name: value.copy() for name, value in weights.items()} for _ in range(workers)]
        self.fragments = divide([(name, value.shape) for name, value in weights.items()], options.fragments)
        self.outer = [self.flat(weights, number) for number in range(options.fragments)]
        self.momentum = [np.zeros_like(one) for one in self.outer]
        self.merge_at = -1

    def flat(self, model: dict[str, Floats], number: int) -> Floats:
        return np.concatenate([model[name].reshape(-1) for name in self.fragments[number].names])

    def step(self) -> None:
        """Make one inner step on all workers, and what rounds follow from it."""
        for worker, model in enumerate(self.models):
            self.inner(worker, self.steps, model)
        self.steps += 1
        if self.steps == self.merge_at:
            self.merge((self.round - 1) % self.options.fragments)
        assert self.options.every is not None
        if self.steps * self.options.fragments >= (self.round + 1) * self.options.every:
            self.exchange(self.round % self.options.fragments)
            self.round += 1
            self.merge_at = self.steps + self.options.delay
            if not self.options.delay:
                self.merge((self.round - 1) % self.options.fragments)

    def exchange(self, number: int) -> None:
        """Average the differences, as their owners do, and make the outer step."""
        rule, wire, count = self.options.outer, self.options.wire, len(self.models)
        total = np.zeros_like(self.outer[number])
        for model in self.models:
            total += rounded(self.outer[number] - self.flat(model, number), wire, count)
        average = rounded(total / np.float32(count), wire, count)
        factor = np.float32(rule.momentum)
        self.momentum[number] = self.momentum[number] * factor + average
        change = self.momentum[number] * factor + average if rule.nesterov else self.momentum[number]
        self.outer[number] = self.outer[number] - np.float32(rule.lr) * change

    def merge(self, number: int) -> None:
        fragment, share = self.fragments[number], np.float32(self.options.merge)
        for model in self.models:
            local = self.flat(model, number)
            merged = share * local + (np.float32(1) - share) * self.outer[number] if share else self.outer[number]
            self.put(fragment, model, merged)

    @staticmethod
    def put(fragment: Any, model: dict[str, Floats], flat: Floats) -> None:
        bounds: Sequence[tuple[int, int]] = list(zip(fragment.starts[:-1], fragment.starts[1:], strict=True))
        for name, shape, (begin, end) in zip(fragment.names, fragment.shapes, bounds, strict=True):
            model[name] = flat[begin:end].reshape(shape).copy()
