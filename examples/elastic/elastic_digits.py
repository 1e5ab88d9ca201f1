# SPDX-License-Identifier: Apache-2.0
"""Shared code of the elastic examples: options, digits, batches of a fixed total size, and progress."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "numpy"))

import digits_data

GLOBAL_BATCH = 120  # can be divided evenly among up to six workers


def arguments(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--output", type=Path, default=Path("example-output/elastic"), help="progress and checkpoints")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait in each step, to kill workers in")
    return parser.parse_args()


class Digits:
    """The training digits, in an order that depends only on the epoch."""

    def __init__(self) -> None:
        data = digits_data.load()
        self.images = np.asarray(data.train_images, np.float32)
        self.labels = np.asarray(data.train_labels, np.int32)
        self.pixels = self.images.shape[1]

    def batches(self, epoch: int, first: int, rank: int, size: int) -> Iterator[tuple[Any, Any]]:
        """Yield this worker's share of each of the epoch's batches, from batch number `first` on."""
        order = np.random.default_rng(epoch).permutation(len(self.labels))
        for start in range(first * GLOBAL_BATCH, len(order) - GLOBAL_BATCH + 1, GLOBAL_BATCH):
            rows = order[start : start + GLOBAL_BATCH][rank::size]
            yield self.images[rows], self.labels[rows]


class Progress:
    """Progress of a run: rank 0 writes a line for each step, for chart.py, and prints one for each epoch."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._path = options.output / "progress.jsonl"

    def step(self, rank: int, size: int, step: int, loss: float) -> None:
        time.sleep(self._options.pause)
        if rank == 0:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._path, "a") as file:
                file.write(json.dumps({"time": time.time(), "step": step, "loss": loss, "workers": size}) + "\n")

    def epoch(self, rank: int, size: int, epoch: int, loss: float) -> None:
        if rank == 0:
            print(f"epoch {epoch:>3}/{self._options.epochs}  {size} worker(s)  loss {loss:.4f}", flush=True)
