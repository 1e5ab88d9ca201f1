# SPDX-License-Identifier: Apache-2.0
"""Learn to read handwritten digits on several ranks with NumPy only.

    horovodrun -np 2 python digits.py

Rank 0 shows progress and writes example-output/numpy-digits/digits.html: curves of loss and accuracy, and the
digits it still misreads.
Uses scikit-learn's digits if it is installed, otherwise digits drawn from a small font with noise.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

try:
    import digits_data
    import digits_page
    import numpy as np
    from digits_model import Network
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    import horovod.numpy as hvd
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install khorovod") from None


@dataclass
class History:
    """Measurements after each epoch, averaged over all ranks."""

    loss: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--batch-size", type=int, default=32, help="for each rank")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--output", type=Path, default=Path("example-output/numpy-digits"))
    return parser.parse_args()


def train_epoch(network: Network, data: digits_data.Digits, options: argparse.Namespace, epoch: int) -> float:
    """Train on this rank's part of the shuffled data for one epoch. Return the mean loss of all ranks."""
    # All ranks shuffle with one seed and take every size-th example, so that no example is used twice.
    order = np.random.default_rng(epoch).permutation(len(data.train_labels))
    steps = len(order) // (options.batch_size * hvd.size())
    mine = order[hvd.rank() :: hvd.size()]
    total = 0.0
    for step in range(steps):
        batch = mine[step * options.batch_size : (step + 1) * options.batch_size]
        loss, gradients = network.loss_and_gradients(data.train_images[batch], data.train_labels[batch])
        # This line is the only difference from a program for one process.
        gradients = hvd.grouped_allreduce(gradients, name="gradients")
        network.descend(gradients, options.learning_rate, momentum=0.9)
        total += loss
    return float(hvd.allreduce(total / max(steps, 1), name="loss"))


def measure_accuracy(network: Network, data: digits_data.Digits) -> float:
    """Return the share of test digits read correctly. Every rank reads its part."""
    mine = slice(hvd.rank(), None, hvd.size())
    right = network.predict(data.test_images[mine]) == data.test_labels[mine]
    counts = hvd.allreduce(np.array([right.sum(), right.size], np.int64), op=hvd.Sum, name="accuracy")
    return float(counts[0] / counts[1])


def train(network: Network, data: digits_data.Digits, options: argparse.Namespace, console: Console) -> History:
    history = History()
    columns = (TextColumn("epoch"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("", total=options.epochs)
        for epoch in range(options.epochs):
            history.loss.append(train_epoch(network, data, options, epoch))
            history.accuracy.append(measure_accuracy(network, data))
            text = f"loss {history.loss[-1]:.4f}  accuracy {history.accuracy[-1]:.1%}"
            progress.update(task, advance=1, description=text)
            # A pipe shows no moving bar, so print a line from time to time.
            if not console.is_terminal and (epoch + 1) % 5 == 0:
                console.print(f"epoch {epoch + 1:>3}/{options.epochs}  {text}")
    return history


def main() -> int:
    options = parse_arguments()
    hvd.init()
    console = Console(quiet=hvd.rank() != 0)
    data = digits_data.load()
    console.print(f"{data.source}: {len(data.train_labels)} to learn from, {len(data.test_labels)} to test on")
    console.print(f"{hvd.size()} rank(s), {hvd.local_size()} on this host")

    network = Network(data.train_images.shape[1], hidden=64, classes=10, seed=hvd.rank())
    hvd.broadcast_parameters(network.parameters, root_rank=0)  # all ranks start from the same weights
    started = time.perf_counter()
    history = train(network, data, options, console)
    seconds = time.perf_counter() - started

    if hvd.rank() == 0:
        options.output.mkdir(parents=True, exist_ok=True)
        page = options.output / "digits.html"
        page.write_text(digits_page.render(network, data, history.loss, history.accuracy, hvd.size(), seconds))
        console.print(f"Accuracy {history.accuracy[-1]:.1%} after {seconds:.1f} s. Look at {page}")
    hvd.barrier()
    return 0 if history.accuracy[-1] > 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
