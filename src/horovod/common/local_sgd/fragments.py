# SPDX-License-Identifier: Apache-2.0
"""Division of a model into fragments, and of a fragment into the ranges that workers own. The functions are pure.

Fragment p of P holds the layers p, p + P, p + 2P, ... (strided layers). A fragment is one flat float32 array.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

NamedShape = tuple[str, tuple[int, ...]]
BLOCK = 256  # values that share one scale on the wire; ranges begin at multiples of it
_SEPARATORS = re.compile(r"[./\[\]']+")


def layer_of(name: str) -> str:
    """Return the layer's name of a parameter: up to its first number, else all but its last part."""
    parts = [part for part in _SEPARATORS.split(name) if part]
    for index, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: index + 1])
    return ".".join(parts[:-1]) or name


def layers_of(names: Sequence[str]) -> list[str]:
    """Return the names of all layers, in the model's order."""
    return list(dict.fromkeys(layer_of(name) for name in names))


@dataclass(frozen=True)
class Fragment:
    """Part of the model that is exchanged as one flat array.

    Attributes:
        names: Names of its parameters.
        shapes: Their shapes.
        starts: Where each parameter begins in the flat array, and the end of the last one.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]

    @property
    def size(self) -> int:
        return self.starts[-1]

    @classmethod
    def from_parameters(cls, parameters: Sequence[NamedShape]) -> Fragment:
        starts = [0]
        for _, shape in parameters:
            starts.append(starts[-1] + math.prod(shape))
        return cls(tuple(name for name, _ in parameters), tuple(shape for _, shape in parameters), tuple(starts))


def divide(parameters: Sequence[NamedShape], count: int) -> list[Fragment]:
    """Return the fragments of a model. The caller has checked that there are enough layers."""
    layers = layers_of([name for name, _ in parameters])
    fragment_of = {layer: index % count for index, layer in enumerate(layers)}
    parts: list[list[NamedShape]] = [[] for _ in range(count)]
    for name, shape in parameters:
        parts[fragment_of[layer_of(name)]].append((name, tuple(shape)))
    return [Fragment.from_parameters(part) for part in parts]


def split(begin: int, end: int, count: int) -> list[tuple[int, int]]:
    """Return `count` ranges that make up a range, as equal as whole blocks allow. Some may be empty."""
    blocks = -(-(end - begin) // BLOCK)
    bounds = [min(end, begin + blocks * index // count * BLOCK) for index in range(count + 1)]
    return list(pairwise(bounds))
