# SPDX-License-Identifier: Apache-2.0
"""Core: what a framework's API calls after each inner step; it starts, advances and merges the rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from horovod.common.local_sgd.fragments import divide, layers_of
from horovod.common.local_sgd.options import Options

Floats = npt.NDArray[np.float32]


class Weights(Protocol):
    """A model's weights, as a framework's API reads and writes them. All calls come from the training thread."""

    def names_and_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return all parameters in the model's order, equal on all ranks."""

    def read(self, names: Sequence[str]) -> list[Floats]:
        """Return copies of these parameters as float32 on the host, in the order of `names`."""

    def write(self, values: Mapping[str, Floats]) -> None:
        """Replace these parameters by float32 arrays of their shapes. Arrays may be reused after the call."""


class Core:
    """The rounds of one model on one rank. Every rank of the process set makes one, in one order."""

    def __init__(self, weights: Weights, options: Options) -> None:
        self.weights = weights
        self.options = options
        parameters = weights.names_and_shapes()
        options.check_layers(layers_of([name for name, _ in parameters]))
        self.fragments = divide(parameters, options.fragments)
        self.steps = 0

    def begin(self) -> None:
        """Give all ranks the weights of the first rank. Call before the first inner step; step() calls it too."""

    def step(self) -> None:
        """Start, advance and merge rounds. Call after each inner step."""
        self.steps += 1

    def finish(self) -> None:
        """Complete the open round and exchange what was trained since; every rank calls this at the end."""

    def sync(self) -> None:
        """Meet the ranks of a new world: take global weights and momentum from the rank with the highest round."""

    def state_dict(self) -> dict[str, Any]:
        """Return counters, global weights and momentum: integers, and float32 arrays by parameter name."""
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what state_dict() returned. Inner weights are not part of it."""
        self.steps = int(state["steps"])
