# SPDX-License-Identifier: Apache-2.0
"""Global weights and outer momentum: float32 arrays on the host, by fragment and parameter name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from horovod.common.local_sgd.fragments import Fragment
from horovod.common.local_sgd.options import OuterSgd

Floats = npt.NDArray[np.float32]


def flattened(fragment: Fragment, arrays: Sequence[npt.NDArray[Any]]) -> Floats:
    """Return a fragment's parameters as one flat array."""
    flat = np.empty(fragment.size, np.float32)
    for begin, end, array in zip(fragment.starts[:-1], fragment.starts[1:], arrays, strict=True):
        flat[begin:end] = np.reshape(array, -1)
    return flat


def by_name(fragment: Fragment, flat: Floats) -> dict[str, Floats]:
    """Return views of a flat array, by parameter name."""
    bounds = zip(fragment.names, fragment.shapes, fragment.starts[:-1], fragment.starts[1:], strict=True)
    return {name: flat[begin:end].reshape(shape) for name, shape, begin, end in bounds}


class Outer:
    """Global weights and momentum of all fragments, which one rule changes."""

    def __init__(self, fragments: Sequence[Fragment], rule: OuterSgd) -> None:
        self.fragments = fragments
        self.rule = rule
        self.weights = [np.zeros(one.size, np.float32) for one in fragments]
        self.momentum = [np.zeros(one.size, np.float32) for one in fragments]

    def set_weights(self, number: int, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Take these parameters as the global weights of a fragment."""
        self.weights[number] = flattened(self.fragments[number], arrays)

    def apply(self, number: int, average: Floats, begin: int = 0, rule: OuterSgd | None = None) -> None:
        """Make an outer step of the part of a fragment that begins at `begin`.

        Args:
            number: The fragment.
            average: Mean over the workers of the global weights minus their weights.
            begin: Where the part begins in the flat fragment.
        """
        rule, part = rule or self.rule, slice(begin, begin + average.size)
        weights, momentum = self.weights[number][part], self.momentum[number][part]
        step = average
        if rule.momentum:
            factor = np.float32(rule.momentum)
            momentum *= factor
            momentum += average
            step = momentum * factor + average if rule.nesterov else momentum
        weights -= np.float32(rule.lr) * step

    def state(self, number: int, begin: int, end: int) -> Floats:
        """Return a copy of a part of a fragment: its weights, then its momentum."""
        return np.concatenate([self.weights[number][begin:end], self.momentum[number][begin:end]])

    def put_state(self, number: int, begin: int, end: int, state: Floats) -> None:
        """Replace a part of a fragment by what `state` returned on another rank."""
        self.weights[number][begin:end] = state[: end - begin]
        self.momentum[number][begin:end] = state[end - begin :]

    def all_by_name(self) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Return copies of all global weights and of all momentum, by parameter name."""
        weights: dict[str, Floats] = {}
        momentum: dict[str, Floats] = {}
        for number, fragment in enumerate(self.fragments):
            weights |= by_name(fragment, self.weights[number].copy())
            momentum |= by_name(fragment, self.momentum[number].copy())
        return weights, momentum

    def load(self, weights: Mapping[str, Any], momentum: Mapping[str, Any]) -> None:
        """Take over what `all_by_name` returned, perhaps with another number of fragments."""
        for what, values in (("weights", weights), ("momentum", momentum)):
            expected = {
                name: shape for one in self.fragments for name, shape in zip(one.names, one.shapes, strict=True)
            }
            found = {name: tuple(np.shape(value)) for name, value in values.items()}
            if found != expected:
                wrong = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
                raise ValueError(f"state_dict: its global {what} do not fit the model, for example {wrong[0]!r}")
        for number, fragment in enumerate(self.fragments):
            self.weights[number] = flattened(fragment, [np.asarray(weights[name]) for name in fragment.names])
            self.momentum[number] = flattened(fragment, [np.asarray(momentum[name]) for name in fragment.names])
