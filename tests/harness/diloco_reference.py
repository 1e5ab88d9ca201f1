# SPDX-License-Identifier: Apache-2.0
"""DiLoCo of all ranks in NumPy, in float32, for models whose gradient is known: each rank moves towards a target."""

from __future__ import annotations

import numpy as np

from harness.arrays import Array

RATE = 0.1
SHAPES = {"a": (300, 3), "b": (5,)}  # more values than one block of the wire format
Weights = dict[str, Array]


def initial(rank: int) -> Weights:
    """Return different weights on each rank; training begins with those of rank 0."""
    random = np.random.default_rng(rank)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def target(rank: int, name: str) -> Array:
    return np.random.default_rng(100 + rank).standard_normal(SHAPES[name]).astype(np.float32)


def trained(
    ranks: int, steps: int, every: int, rate: float = 0.7, momentum: float = 0.9, nesterov: bool = True
) -> list[Weights]:
    """Return the global weights after each round of a training by gradient descent."""
    world = initial(0)
    outer = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    rounds = []
    for _ in range(steps // every):
        workers = [dict(world) for _ in range(ranks)]
        for rank, weights in enumerate(workers):
            for name in weights:
                for _ in range(every):
                    weights[name] = weights[name] - RATE * (weights[name] - target(rank, name))
        for name in world:
            change = world[name] - np.mean([weights[name] for weights in workers], 0)
            outer[name] = momentum * outer[name] + change
            step = momentum * outer[name] + change if nesterov else outer[name]
            world[name] = (world[name] - rate * step).astype(np.float32)
        rounds.append(dict(world))
    return rounds
