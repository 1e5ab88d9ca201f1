# SPDX-License-Identifier: Apache-2.0
"""Learn to read handwritten digits on several ranks.

    horovodrun -np 2 python digits.py
    horovodrun -np 2 python digits.py --epochs 20 --resume                          # continues the last run
    horovodrun -np 2 python digits.py --epochs 20 --resume demo-output/digits.pt    # continues the demo, elsewhere

Rank 0 shows progress and writes a checkpoint, the measurements, a plot of the losses and a page to --output.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

try:
    import torch
    from digits_dataset import DigitsNet, load, training_loader, validate
    from digits_page import save_page
    from digits_report import Run, compare, counted, progress_line, save_plot
    from placement import pin
    from torch import nn
    from torch.utils.data import DataLoader

    import horovod.torch as hvd
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[examples]'") from None

OWN_CHECKPOINT = Path("digits.pt")  # file name in --output
EPOCHS_APART = 3


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=None, help="at most so many in an epoch")
    parser.add_argument("--batch-size", type=int, default=32, help="for each rank")
    parser.add_argument("--lr", type=float, default=0.02, help="for one rank: it is multiplied by their number")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--resume",
        nargs="?",
        type=Path,
        const=OWN_CHECKPOINT,
        metavar="CHECKPOINT",
        help="continue from this checkpoint, or from the one in --output; starts anew if it is not there",
    )
    parser.add_argument("--output", type=Path, default=Path("example-output/pytorch-digits"))
    parser.add_argument("--compare-with", type=Path, default=None, metavar="RUN.json", help="figures of an earlier run")
    return parser.parse_args()


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[tuple[torch.Tensor, ...]],
    device: torch.device,
    steps: int | None,
) -> float:
    """Train on this rank's part of the data for one epoch. Return the mean loss of all ranks."""
    losses = []
    for step, (images, labels) in enumerate(loader):
        if step == steps:
            break
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return float(hvd.allreduce(torch.stack(losses).mean().cpu(), name="training loss"))


def seconds_apart(options: argparse.Namespace, device: torch.device) -> list[float]:
    """Return the seconds of epochs without communication, in which each rank trains alone at the same time.

    With communication, epochs take at least that long. Two cores do less than twice the work of one if other
    programs use them too, or if they are threads of one core.
    """
    loader = training_loader(load()[0], options.batch_size, options.seed)
    model = DigitsNet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    seconds = []
    for _ in range(EPOCHS_APART):
        started = time.perf_counter()
        train_epoch(model, optimizer, loader, device, options.steps)  # all ranks meet at the end of an epoch
        seconds.append(time.perf_counter() - started)
    return seconds


def resume(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer, run: Run) -> Run:
    """Return the run of rank 0's checkpoint on all ranks; the other ranks need no access to the file."""
    if hvd.rank() == 0 and checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        run.train_losses, run.losses, run.accuracies = saved["curves"]
    return hvd.broadcast_object(run, root_rank=0, name="run")


def save(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer, run: Run) -> None:
    """Write a new file and rename it, so that a crash leaves a complete checkpoint."""
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    curves = (run.train_losses, run.losses, run.accuracies)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "curves": curves}
    torch.save(state, f"{checkpoint}.new")
    Path(f"{checkpoint}.new").replace(checkpoint)


def train(options: argparse.Namespace, device: torch.device) -> Run:
    torch.manual_seed(options.seed)
    training, validation = load()
    loader = training_loader(training, options.batch_size, options.seed)
    model = DigitsNet().to(device)
    # The batch of all ranks is `size` times as large, so steps can be longer.
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    checkpoint = options.output / OWN_CHECKPOINT
    run = Run(ranks=hvd.size(), seed=options.seed)
    if options.resume is not None:
        run = resume(checkpoint if options.resume is OWN_CHECKPOINT else options.resume, model, optimizer, run)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(len(run.losses), options.epochs):
        loader.sampler.set_epoch(epoch)  # shuffle differently in every epoch
        started = time.perf_counter()
        run.train_losses.append(train_epoch(model, optimizer, loader, device, options.steps))
        run.epoch_seconds.append(time.perf_counter() - started)
        run.samples_per_epoch = hvd.size() * options.batch_size * min(len(loader), options.steps or len(loader))
        loss, accuracy = validate(model, validation, device)
        run.losses.append(loss)
        run.accuracies.append(accuracy)
        if hvd.rank() == 0:
            print(progress_line(run, options.epochs), end="\r" if sys.stdout.isatty() else "\n", flush=True)
            save(checkpoint, model, optimizer, run)
    return run


def main() -> int:
    options = parse_arguments()
    hvd.init()
    device = pin()
    if hvd.rank() == 0:
        print(f"digits on {counted(hvd.size())}, {torch.get_num_threads()} thread(s) each, {device}")
    run = train(options, device)
    if options.compare_with:
        run.seconds_apart = seconds_apart(options, device)
    if hvd.rank() == 0:
        earlier = Run.read(options.compare_with) if options.compare_with else None
        print()
        run.write(options.output / "digits.json")
        save_plot(options.output / "digits.svg", run, earlier)
        save_page(options.output / "digits.html", run, earlier)
        print(compare(run, earlier))
        print(f"checkpoint {options.output / OWN_CHECKPOINT}  plot {options.output / 'digits.svg'}")
        print(f"page {options.output / 'digits.html'} (open it in a browser)")
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
