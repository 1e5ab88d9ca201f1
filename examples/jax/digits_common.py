# SPDX-License-Identifier: Apache-2.0
"""Shared code of the digits examples: this rank's batches, and a training loop with a progress bar on rank 0."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

import horovod.jax as hvd

sys.path.append(str(Path(__file__).resolve().parents[1] / "numpy"))

import digits_data

Digits = digits_data.Digits
load = digits_data.load


def batches(data: Digits, epoch: int, batch_size: int) -> Iterator[tuple[Any, Any]]:
    """Yield this rank's part of the shuffled data. All ranks use one seed, so that no example is used twice."""
    order = np.random.default_rng(epoch).permutation(len(data.train_labels))
    mine = order[hvd.rank() :: hvd.size()]
    for step in range(len(order) // (batch_size * hvd.size())):
        rows = mine[step * batch_size : (step + 1) * batch_size]
        yield data.train_images[rows], data.train_labels[rows]


def accuracy(data: Digits, predict: Callable[[Any], Any]) -> float:
    """Return the share of test digits read correctly. Every rank reads its part."""
    mine = slice(hvd.rank(), None, hvd.size())
    right = np.asarray(predict(data.test_images[mine])) == data.test_labels[mine]
    counts = hvd.allreduce(np.array([right.sum(), right.size], np.int32), op=hvd.Sum, name="accuracy")
    return float(counts[0] / counts[1])


def train(data: Digits, epochs: int, step: Callable[[Any, Any], Any], predict: Callable[[Any], Any]) -> float:
    """Train, with a progress bar on rank 0. Return the final accuracy."""
    console = Console(quiet=hvd.rank() != 0)
    console.print(f"{data.source}, {hvd.size()} rank(s)")
    result = 0.0
    for epoch in track(range(epochs), "epochs", console=console, disable=not console.is_terminal):
        losses = [step(*batch) for batch in batches(data, epoch, batch_size=32)]
        result = accuracy(data, predict)
        if epoch % 5 == 4:
            console.print(f"epoch {epoch + 1:>3}  loss {float(losses[-1]):.4f}  accuracy {result:.1%}")
    return result
