# SPDX-License-Identifier: Apache-2.0
"""Train as is usual on ImageNet: large batches, a linearly scaled rate with warm-up, a staircase, checkpoints.

    horovodrun -np 2 python imagenet_style.py
    horovodrun -np 8 python imagenet_style.py --model resnet50 --image-size 224 --classes 1000 --epochs 90

Images are generated (textures.py): use your own Dataset instead. A second run continues from the last checkpoint.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

try:
    import torch
    from placement import pin
    from resnet import resnet50, small_resnet
    from textures import CLASSES, Textures
    from torch import nn
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler

    import horovod.torch as hvd
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[examples]'") from None


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("resnet50", "small"), default="small")
    parser.add_argument("--classes", type=int, default=CLASSES)
    parser.add_argument("--images", type=int, default=1000, help="to learn from; a fifth as many to validate")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=None, help="at most so many in an epoch")
    parser.add_argument("--batch-size", type=int, default=20, help="of one backward pass on one rank")
    parser.add_argument("--batches-per-allreduce", type=int, default=1, help="backward passes before gradients travel")
    parser.add_argument("--base-lr", type=float, default=0.0125, help="for one rank and one backward pass")
    parser.add_argument("--warmup-epochs", type=float, default=2)
    parser.add_argument("--weight-decay", type=float, default=5e-5)
    parser.add_argument("--checkpoints", type=Path, default=Path("example-output/pytorch-imagenet-style"))
    return parser.parse_args()


class Average:
    """Mean of a quantity over all batches of all ranks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sum, self.count = 0.0, 0

    def add(self, total: float, count: int) -> None:
        self.sum += total
        self.count += count

    def value(self) -> float:
        both = torch.tensor([self.sum, float(self.count)], dtype=torch.float64)
        total, count = hvd.allreduce(both, op=hvd.Sum, name=self.name).tolist()
        return float(total / max(count, 1))


def learning_rate(options: argparse.Namespace, epoch: float) -> float:
    """Return the rate: it grows from one rank's to that of all, then falls to a tenth after each third of the run.

    Large batches allow long steps, but only after the network has left its random start.
    """
    workers = hvd.size() * options.batches_per_allreduce
    if epoch < options.warmup_epochs:
        factor = 1 + (workers - 1) * epoch / options.warmup_epochs
    else:
        factor = workers * 0.1 ** int(3 * epoch / options.epochs)
    return float(options.base_lr * factor)


def loader_of(data: Textures, batch_size: int, shuffle: bool) -> DataLoader[tuple[torch.Tensor, int]]:
    sampler: DistributedSampler[tuple[torch.Tensor, int]] = DistributedSampler(
        data, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=shuffle
    )
    return DataLoader(data, batch_size, sampler=sampler, drop_last=shuffle)


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[tuple[torch.Tensor, int]],
    options: argparse.Namespace,
    epoch: int,
) -> tuple[float, float]:
    """Train for one epoch. Return the mean training loss and accuracy of all ranks."""
    loss_average, accuracy = Average("train loss"), Average("train accuracy")
    steps = min(len(loader), options.steps or len(loader))
    for step, (images, labels) in zip(range(steps), loader, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(options, epoch + step / steps)
        optimizer.zero_grad()
        # Split the batch into pieces that fit into memory. Gradients add up, so weigh each loss by its share.
        for piece, truth in zip(images.split(options.batch_size), labels.split(options.batch_size), strict=True):
            scores = model(piece.to(options.device))
            loss = nn.functional.cross_entropy(scores, truth.to(options.device), label_smoothing=0.1)
            loss_average.add(float(loss.detach()) * len(truth), len(truth))
            accuracy.add(float((scores.argmax(1).cpu() == truth).sum()), len(truth))
            (loss * len(truth) / len(labels)).backward()
        optimizer.step()
    return loss_average.value(), accuracy.value()


def validate(model: nn.Module, loader: DataLoader[tuple[torch.Tensor, int]], device: torch.device) -> list[float]:
    """Return the loss, and the shares of images whose class is the first or among the first five."""
    averages = [Average("validation loss"), Average("top 1"), Average("top 5")]
    model.eval()
    with torch.no_grad():
        for images, labels in loader:
            scores, truth = model(images.to(device)), labels.to(device)
            found = scores.topk(5).indices == truth.unsqueeze(1)
            sums = (nn.functional.cross_entropy(scores, truth, reduction="sum"), found[:, 0].sum(), found.sum())
            for average, total in zip(averages, sums, strict=True):
                average.add(float(total), len(labels))
    model.train()
    return [average.value() for average in averages]


def last_checkpoint(folder: Path) -> int:
    """Return the epoch of rank 0's last checkpoint on all ranks; only rank 0 needs access to the files."""
    epochs = [int(path.stem.split("-")[1]) for path in folder.glob("checkpoint-*.pt")] if hvd.rank() == 0 else []
    return int(hvd.broadcast_object(max(epochs, default=0), root_rank=0, name="resume from epoch"))


def main() -> int:
    options = parse_arguments()
    hvd.init()
    options.device = pin()
    torch.manual_seed(1)
    training = loader_of(
        Textures(options.images, options.image_size, seed=1), options.batch_size * options.batches_per_allreduce, True
    )
    validation = loader_of(Textures(options.images // 5, options.image_size, seed=2), options.batch_size, False)
    model = {"resnet50": resnet50, "small": small_resnet}[options.model](options.classes).to(options.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.base_lr, momentum=0.9, weight_decay=options.weight_decay)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        backward_passes_per_step=options.batches_per_allreduce,
    )
    first = last_checkpoint(options.checkpoints)
    if first and hvd.rank() == 0:
        saved = torch.load(options.checkpoints / f"checkpoint-{first}.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        print(f"goes on after epoch {first}")
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for epoch in range(first, options.epochs):
        training.sampler.set_epoch(epoch)
        loss, accuracy = train_epoch(model, optimizer, training, options, epoch)
        validation_loss, top1, top5 = validate(model, validation, options.device)
        if hvd.rank() == 0:
            print(
                f"epoch {epoch + 1}/{options.epochs}  lr {optimizer.param_groups[0]['lr']:.4f}  loss {loss:.3f} "
                f"({accuracy:.1%})  validation {validation_loss:.3f}, top-1 {top1:.1%}, top-5 {top5:.1%}",
                flush=True,
            )
            options.checkpoints.mkdir(parents=True, exist_ok=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, options.checkpoints / f"checkpoint-{epoch + 1}.pt")
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
