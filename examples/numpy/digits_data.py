# SPDX-License-Identifier: Apache-2.0
"""Digits of 8 by 8 pixels: handwritten ones from scikit-learn, or drawn ones if it is not installed."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# A digit has five rows of three pixels.
_FONT = (
    "###|#.#|#.#|#.#|###", ".#.|##.|.#.|.#.|###", "###|..#|###|#..|###", "###|..#|.##|..#|###", "#.#|#.#|###|..#|..#",
    "###|#..|###|..#|###", "###|#..|###|#.#|###", "###|..#|.#.|.#.|.#.", "###|#.#|###|#.#|###", "###|#.#|###|..#|###",
)  # fmt: skip


@dataclass(frozen=True)
class Digits:
    """Data set: images are rows of 64 pixels from 0 to 1, labels are the digits."""

    source: str
    train_images: Array
    train_labels: Array
    test_images: Array
    test_labels: Array


def load() -> Digits:
    """Return the data, four fifths for training and one fifth for testing. The split is equal on every rank."""
    if importlib.util.find_spec("sklearn") is not None:
        bunch = importlib.import_module("sklearn.datasets").load_digits()
        images, labels, source = bunch.data / 16, bunch.target, "handwritten digits (scikit-learn)"
    else:
        images, labels = draw(count=3600)
        source = "drawn digits (install scikit-learn for handwritten ones)"
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = images[order].astype(np.float32), labels[order].astype(np.int64)
    cut = len(labels) * 4 // 5
    return Digits(source, images[:cut], labels[:cut], images[cut:], labels[cut:])


def draw(count: int) -> tuple[Array, Array]:
    """Return digits of the font at random positions, with random strokes, blur and noise."""
    random = np.random.default_rng(1)
    glyphs = np.array([[[pixel == "#" for pixel in row] for row in glyph.split("|")] for glyph in _FONT], np.float64)
    labels = random.integers(0, 10, count)
    images = np.zeros((count, 8, 8))
    for image, label in zip(images, labels, strict=True):
        top, left = random.integers(1, 3), random.integers(2, 4)
        image[top : top + 5, left : left + 3] = glyphs[label] * random.uniform(0.5, 1.0, (5, 3))
    blurred = images + 0.15 * (np.roll(images, 1, axis=2) + np.roll(images, 1, axis=1))
    return np.clip(blurred + 0.1 * random.standard_normal(images.shape), 0, 1).reshape(count, 64), labels
