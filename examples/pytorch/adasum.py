# SPDX-License-Identifier: Apache-2.0
"""Compare Adasum with averaging: one learning rate for both, not scaled by the number of ranks.

    horovodrun -np 2 python adasum.py

Adasum adds steps that point in different directions and averages those that agree, so one learning rate fits any
number of ranks. Prints the validation loss of both after each epoch.
"""

from __future__ import annotations

import argparse
import sys

try:
    import torch
    from digits_dataset import DigitsNet, load, training_loader, validate
    from placement import pin
    from torch import nn

    import horovod.torch as hvd
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[examples]'") from None


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=None, help="at most so many in an epoch")
    parser.add_argument("--batch-size", type=int, default=32, help="for each rank")
    parser.add_argument("--lr", type=float, default=0.02, help="the same for any number of ranks")
    return parser.parse_args()


def train(op: int, options: argparse.Namespace, device: torch.device) -> list[tuple[float, float]]:
    """Return validation loss and accuracy after each epoch."""
    torch.manual_seed(1)
    training, validation = load()
    loader = training_loader(training, options.batch_size, seed=1)
    model = DigitsNet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=op)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    found = []
    for epoch in range(options.epochs):
        loader.sampler.set_epoch(epoch)
        for step, (images, labels) in enumerate(loader):
            if step == options.steps:
                break
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images.to(device)), labels.to(device)).backward()
            optimizer.step()
        found.append(validate(model, validation, device))
    return found


def main() -> int:
    options = parse_arguments()
    hvd.init()
    device = pin()
    adasum, average = train(hvd.Adasum, options, device), train(hvd.Average, options, device)
    if hvd.rank() == 0:
        print(f"validation on {hvd.size()} rank(s), lr {options.lr}")
        for epoch, (ours, plain) in enumerate(zip(adasum, average, strict=True), 1):
            print(
                f"epoch {epoch}  Adasum: loss {ours[0]:.4f}, accuracy {ours[1]:.2%}  "
                f"Average: loss {plain[0]:.4f}, accuracy {plain[1]:.2%}"
            )
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
