# SPDX-License-Identifier: Apache-2.0
"""Compare compressed gradients with dense ones: accuracy on the digits, and bytes that the ranks exchange.

    horovodrun -np 2 python compression.py
    horovodrun -np 2 python compression.py --methods topk onebit --no-feedback    # what error feedback is for

Compression is for slow networks between hosts. Here all ranks exchange compressed gradients (scope="all") over sockets,
so that one computer can show it. That saves bytes here, not time. Rank 0 shows progress and writes the figures and a
plot to --output.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

try:
    import torch
    from digits_dataset import DigitsNet, load, training_loader, validate
    from placement import pin
    from torch import nn

    import horovod.torch as hvd
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[examples]'") from None

MOMENTUM = 0.9
Run = dict[str, Any]  # the measurements of one method


def methods(steps: int, more: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Return functions that make the argument of DistributedOptimizer(compression=...). `steps`: per epoch."""
    compression = hvd.Compression
    return {
        "dense": lambda: compression.none,
        "fp16": lambda: compression.fp16,
        "int8": lambda: compression.int8(**more),
        "onebit": lambda: compression.onebit(**more),
        "topk": lambda: compression.topk(0.02, **more),
        "dgc": lambda: compression.dgc(0.01, MOMENTUM, ramp_steps=max(1, steps // 2), **more),
        "powersgd": lambda: compression.powersgd(2, start_after=10, **more),
        "onebit-adam": lambda: None,  # has its own optimizer
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = list(methods(1, {}))
    parser.add_argument("--methods", nargs="+", choices=known, default=known, metavar="METHOD", help=", ".join(known))
    parser.add_argument("--no-feedback", action="store_true", help="forget what a step loses")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="for each rank")
    parser.add_argument("--lr", type=float, default=0.02, help="for one rank: it is multiplied by their number")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("example-output/pytorch-compression"))
    return parser.parse_args()


def make_optimizer(method: str, model: nn.Module, steps: int, options: argparse.Namespace) -> Any:
    more = {"scope": "all", "min_bytes": 4096, "error_feedback": not options.no_feedback}
    named = list(model.named_parameters())
    if method == "onebit-adam":
        return hvd.OneBitAdam(model.parameters(), lr=2e-3, named_parameters=named, freeze_after=2 * steps, **more)
    # Deep Gradient Compression accumulates the momentum itself.
    momentum = 0.0 if method == "dgc" else MOMENTUM
    sgd = torch.optim.SGD(model.parameters(), lr=options.lr * hvd.size(), momentum=momentum)
    return hvd.DistributedOptimizer(sgd, named, compression=methods(steps, more)[method]())


def megabytes_sent() -> float:
    """Return the megabytes that this rank has sent to other ranks."""
    return float(hvd.counters()["data_bytes_sent"] or 0) / 1e6


def train(method: str, options: argparse.Namespace, device: torch.device) -> Run:
    """Train one model. Return the measurements of each epoch."""
    torch.manual_seed(options.seed)
    training, validation = load()
    loader = training_loader(training, options.batch_size, options.seed)
    model = DigitsNet().to(device)
    optimizer = make_optimizer(method, model, len(loader), options)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    run: Run = {"method": method, "losses": [], "accuracies": [], "megabytes": [], "seconds": 0.0}
    for epoch in range(options.epochs):
        loader.sampler.set_epoch(epoch)
        before, started = megabytes_sent(), time.perf_counter()
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images.to(device)), labels.to(device)).backward()
            optimizer.step()
        run["seconds"] += time.perf_counter() - started
        run["megabytes"].append(megabytes_sent() - before)
        loss, accuracy = validate(model, validation, device)
        run["losses"].append(loss)
        run["accuracies"].append(accuracy)
        if hvd.rank() == 0:
            line = f"{method:>11}  epoch {epoch + 1:>2}/{options.epochs}  validation {loss:.4f}, {accuracy:7.2%}"
            print(line, end="\r" if sys.stdout.isatty() else "\n", flush=True)
    return run


def table(runs: list[Run]) -> str:
    """Return a table with one line for each method."""
    lines = [f"{'method':>11}{'accuracy':>10}{'loss':>9}{'MB, first epoch':>17}{'last':>9}{'fewer':>8}{'s':>7}"]
    dense = next((run["megabytes"][-1] for run in runs if run["method"] == "dense"), None)
    for run in runs:
        last = run["megabytes"][-1]
        fewer = f"{dense / last:.1f}x" if dense and last else "-"
        lines.append(
            f"{run['method']:>11}{run['accuracies'][-1]:>10.2%}{run['losses'][-1]:>9.4f}"
            f"{run['megabytes'][0]:>17.2f}{last:>9.2f}{fewer:>8}{run['seconds']:>7.2f}"
        )
    return "\n".join(lines)


def save_plot(path: Path, runs: list[Run]) -> None:
    try:
        import matplotlib as mpl  # slow to import, and only rank 0 draws
    except ModuleNotFoundError:
        print(f"no plot at {path}: pip install 'khorovod[examples]' for matplotlib")
        return
    mpl.use("svg")
    from matplotlib import pyplot as plt

    plt.rcParams["svg.fonttype"] = "none"
    figure, axes = plt.subplots(figsize=(7, 4))
    for run in runs:
        moved = [sum(run["megabytes"][: epoch + 1]) for epoch in range(len(run["losses"]))]
        axes.plot(moved, run["losses"], marker="o", markersize=3, label=run["method"])
    axes.set(xlabel="MB that a rank has sent", ylabel="validation loss", xscale="log", yscale="log")
    axes.set_title("What compressed gradients learn from a byte")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def main() -> int:
    options = parse_arguments()
    os.environ.setdefault("HOROVOD_SHARED_MEMORY", "0")  # exchange data as if each rank were on its own host
    hvd.init()
    device = pin()
    if hvd.rank() == 0:
        feedback = "without" if options.no_feedback else "with"
        print(f"digits on {hvd.size()} rank(s), {feedback} error feedback")
    runs = [train(method, options, device) for method in options.methods]
    if hvd.rank() == 0:
        print(f"\n{table(runs)}")
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "compression.json").write_text(json.dumps(runs) + "\n")
        save_plot(options.output / "compression.svg", runs)
        print(f"figures and plot in {options.output}: compression.json, compression.svg")
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
