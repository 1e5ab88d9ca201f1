# SPDX-License-Identifier: Apache-2.0
"""The output of the digits example: its measurements, a progress line for each epoch, and a plot."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

_BAR = 24


@dataclass
class Run:
    """Measurements after each epoch, over all ranks."""

    ranks: int
    seed: int
    train_losses: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    epoch_seconds: list[float] = field(default_factory=list)
    seconds_apart: list[float] = field(default_factory=list)  # epochs of ranks that did not communicate
    samples_per_epoch: int = 0

    @property
    def samples_per_second(self) -> float:
        """Return the speed of a typical epoch (the median, because the first epoch also fills caches)."""
        return self._rate(self.epoch_seconds)

    @property
    def samples_per_second_apart(self) -> float:
        return self._rate(self.seconds_apart)

    def _rate(self, seconds: list[float]) -> float:
        return self.samples_per_epoch / median(seconds) if seconds else 0.0

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)) + "\n")

    @staticmethod
    def read(path: Path) -> Run:
        return Run(**json.loads(path.read_text()))


def counted(ranks: int) -> str:
    """Return "1 rank" or "2 ranks"."""
    return f"{ranks} rank{'s' * (ranks != 1)}"


def progress_line(run: Run, epochs: int) -> str:
    """Return a bar and the figures of the last epoch. Each epoch prints a new line, so the bar grows downwards."""
    done = len(run.losses)
    filled = _BAR * done // epochs
    return (
        f"epoch {done:>3}/{epochs} {'█' * filled}{'░' * (_BAR - filled)} loss {run.train_losses[-1]:.4f}  "
        f"validation {run.losses[-1]:.4f}, {run.accuracies[-1]:6.2%}  {run.epoch_seconds[-1]:.2f} s"
    )


def compare(run: Run, earlier: Run | None) -> str:
    """Return a table with one line for each run, and the speedup of this run."""
    runs = [one for one in (earlier, run) if one is not None]
    lines = [f"{'processes':>9}{'s/epoch':>9}{'samples/s':>11}{'val. loss':>11}{'accuracy':>10}"]
    for one in runs:
        seconds = median(one.epoch_seconds) if one.epoch_seconds else 0.0
        lines.append(
            f"{one.ranks:>9}{seconds:>9.2f}{one.samples_per_second:>11.0f}{one.losses[-1]:>11.4f}"
            f"{one.accuracies[-1]:>10.2%}"
        )
    if earlier is not None and run.epoch_seconds and earlier.epoch_seconds:
        factor = run.samples_per_second / earlier.samples_per_second
        lines.append(f"{run.ranks} processes handle {factor:.2f} times the samples per second of {earlier.ranks}")
        if run.seconds_apart:
            best = run.samples_per_second_apart / earlier.samples_per_second
            lines.append(
                f"without any communication between them it is {best:.2f} times: all that this machine gives now"
            )
    return "\n".join(lines)


def save_plot(path: Path, run: Run, earlier: Run | None) -> None:
    try:
        import matplotlib as mpl  # slow to import, and only rank 0 draws
    except ModuleNotFoundError:
        print(f"no plot at {path}: pip install 'khorovod[examples]' for matplotlib")
        return
    mpl.use("svg")
    from matplotlib import pyplot as plt

    plt.rcParams["svg.fonttype"] = "none"
    figure, axes = plt.subplots(figsize=(7, 4))
    epochs = range(1, len(run.losses) + 1)
    axes.plot(epochs, run.train_losses, label=f"training, {counted(run.ranks)}", color="#0072b2")
    axes.plot(epochs, run.losses, label=f"validation, {counted(run.ranks)}", color="#d55e00")
    if earlier is not None:
        before = range(1, len(earlier.losses) + 1)
        axes.plot(before, earlier.train_losses, "--", label=f"training, {counted(earlier.ranks)}", color="#56b4e9")
        axes.plot(before, earlier.losses, "--", label=f"validation, {counted(earlier.ranks)}", color="#e69f00")
    axes.set(xlabel="epoch", ylabel="cross-entropy", yscale="log", title="Loss on handwritten digits")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
