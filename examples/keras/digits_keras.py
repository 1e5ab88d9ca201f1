# SPDX-License-Identifier: Apache-2.0
"""Shared code of the Keras examples: the digits, this rank's part of them, and a small network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras

import horovod.keras as hvd

sys.path.append(str(Path(__file__).resolve().parents[1] / "numpy"))

import digits_data


def parts() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return this rank's training and test data. Ranks have different rows, and equal numbers of them."""
    data = digits_data.load()
    pairs = ((data.train_images, data.train_labels), (data.test_images, data.test_labels))
    train, test = (
        tuple(each[: len(each) // hvd.size() * hvd.size()][hvd.rank() :: hvd.size()] for each in pair) for pair in pairs
    )
    return train, test  # type: ignore[return-value]


def network(features: int) -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((features,)),
            layers.Dense(64, activation="relu"),
            layers.Dropout(0.1),
            layers.Dense(10),
            # Float32 also in mixed precision, because probabilities need the range.
            layers.Activation("softmax", dtype="float32"),
        ]
    )
