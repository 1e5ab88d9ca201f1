# SPDX-License-Identifier: Apache-2.0
"""Measure how fast ResNet-50 trains on made-up images, and how much of that speed each of several ranks keeps.

    horovodrun -np 2 python synthetic_benchmark.py --image-size 64 --batch-size 8

First rank 0 trains alone while the others sleep, then all train together. The scaling efficiency is the speed of a rank
in the second part divided by that in the first. Speeds are means with 95 % intervals.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from statistics import mean, stdev

try:
    import torch
    from placement import pin
    from resnet import resnet50, small_resnet
    from torch import nn

    import horovod.torch as hvd
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[examples]'") from None


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("resnet50", "small"), default="resnet50")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=32, help="for each rank")
    parser.add_argument("--warmup-batches", type=int, default=3)
    parser.add_argument("--batches-per-iteration", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument(
        "--compression", choices=("none", "fp16", "bf16"), default="none", help="of gradients on the way"
    )
    parser.add_argument("--adasum", action="store_true", help="combine steps by Adasum instead of averaging gradients")
    return parser.parse_args()


def speeds_of(train_batch: Callable[[], None], options: argparse.Namespace) -> list[float]:
    """Return this rank's images per second, once for each iteration."""
    for _ in range(options.warmup_batches):
        train_batch()
    speeds = []
    for _ in range(options.iterations):
        started = time.perf_counter()
        for _ in range(options.batches_per_iteration):
            train_batch()
        seconds = time.perf_counter() - started
        speeds.append(options.batch_size * options.batches_per_iteration / seconds)
    return speeds


def batch_trainer(
    model: nn.Module, optimizer: torch.optim.Optimizer, options: argparse.Namespace
) -> Callable[[], None]:
    device = next(model.parameters()).device
    images = torch.randn(options.batch_size, 3, options.image_size, options.image_size, device=device)
    labels = torch.randint(10, (options.batch_size,), device=device)

    def train_batch() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return train_batch


def interval(values: list[float]) -> float:
    """Return half the width of the mean's 95 % interval."""
    return 1.96 * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def main() -> int:
    options = parse_arguments()
    hvd.init()
    device = pin()
    torch.manual_seed(1)
    model = (resnet50() if options.model == "resnet50" else small_resnet()).to(device)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    say: Callable[..., None] = print if hvd.rank() == 0 else lambda *_: None
    say(f"{options.model}, images {options.image_size}x{options.image_size}, batch {options.batch_size}, {device}")

    alone = speeds_of(batch_trainer(model, optimizer, options), options) if hvd.rank() == 0 else []
    hvd.barrier()  # the other ranks wait here
    alone = hvd.broadcast_object(alone, root_rank=0, name="alone")
    say(f"1 rank:  {mean(alone):.1f} +- {interval(alone):.1f} images/s")

    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=getattr(hvd.Compression, options.compression),
        op=hvd.Adasum if options.adasum else hvd.Average,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    everyone = hvd.allgather_object(speeds_of(batch_trainer(model, optimizer, options), options), name="speeds")
    each = [mean(speeds) for speeds in zip(*everyone, strict=True)]
    total = [sum(speeds) for speeds in zip(*everyone, strict=True)]
    say(f"{hvd.size()} ranks: {mean(each):.1f} +- {interval(each):.1f} images/s for each rank")
    say(f"total:   {mean(total):.1f} +- {interval(total):.1f} images/s on {hvd.size()} ranks")
    say(f"scaling efficiency: {mean(each) / mean(alone):.1%}")
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
