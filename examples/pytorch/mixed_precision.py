# SPDX-License-Identifier: Apache-2.0
"""Mixed precision: the forward pass and the sent gradients use half precision, the weights full precision.

    horovodrun -np 2 python mixed_precision.py

Uses bfloat16 on a CPU, where it needs no loss scaling, and float16 with a GradScaler on a GPU. The order matters:
complete the averages, unscale, clip, then step without reducing again. All ranks skip the same steps, because a
gradient that overflows on one rank is infinite in the average too.
"""

from __future__ import annotations

import argparse
import sys
import warnings

try:
    import torch
    from digits_dataset import load, training_loader, validate
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
    parser.add_argument("--lr", type=float, default=0.02, help="for one rank: it is multiplied by their number")
    parser.add_argument("--scale-loss", action="store_true", help="use the GradScaler on a CPU, too")
    return parser.parse_args()


def make_model() -> nn.Module:
    """Return a model without convolutions, because they are very slow on a processor without bfloat16."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 256),
        nn.ReLU(),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    images: torch.Tensor,
    labels: torch.Tensor,
) -> None:
    half = torch.float16 if images.is_cuda else torch.bfloat16
    optimizer.zero_grad()
    with torch.autocast(images.device.type, dtype=half):
        loss = nn.functional.cross_entropy(model(images), labels)
    scaler.scale(loss).backward()
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    scaler.update()


def main() -> int:
    # On a processor without bfloat16, torch falls back to slower code and warns.
    warnings.filterwarnings("ignore", message="mkldnn_matmul failed")
    options = parse_arguments()
    hvd.init()
    device = pin()
    torch.manual_seed(1)
    training, validation = load()
    loader = training_loader(training, options.batch_size, seed=1)
    model = make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr * hvd.size(), momentum=0.9)
    compression = hvd.Compression.fp16 if device.type == "cuda" else hvd.Compression.bf16
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression=compression)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda" or options.scale_loss)
    for epoch in range(options.epochs):
        loader.sampler.set_epoch(epoch)
        for step, (images, labels) in enumerate(loader):
            if step == options.steps:
                break
            train_step(model, optimizer, scaler, images.to(device), labels.to(device))
        loss, accuracy = validate(model, validation, device)
        if hvd.rank() == 0:
            print(
                f"epoch {epoch + 1}/{options.epochs}  validation {loss:.4f}, accuracy {accuracy:.2%}, "
                f"loss scale {scaler.get_scale():g}",
                flush=True,
            )
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
