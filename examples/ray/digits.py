# SPDX-License-Identifier: Apache-2.0
"""Learn to read handwritten digits on Ray: Ray Data streams them to the workers, each of which is a rank.

python examples/ray/digits.py                # starts Ray on this machine
RAY_ADDRESS=auto python digits.py            # on the cluster that this machine belongs to
python digits.py --epochs 10 --name mine     # continues a stopped run of that name
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

try:
    import numpy as np
    import ray
    import ray.data
    import ray.train
    import torch
    from ray.train import Checkpoint, FailureConfig, Result, RunConfig, ScalingConfig
    from sklearn.datasets import load_digits
    from torch import nn

    import horovod.torch as hvd
    from horovod.ray import HorovodTrainer
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[ray,examples]'") from None

WEIGHTS = "digits.pt"  # file name in a checkpoint


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def digits() -> tuple[ray.data.Dataset, ray.data.Dataset]:
    """Return training and validation digits, four fifths and one fifth."""
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    images, labels = bunch.images[order].astype("float32") / 16, bunch.target[order].tolist()
    rows = [{"image": image, "label": label} for image, label in zip(images, labels, strict=True)]
    return ray.data.from_items(rows[: len(rows) * 4 // 5]), ray.data.from_items(rows[len(rows) * 4 // 5 :])


def train(config: dict[str, Any]) -> None:
    """Train in one worker."""
    hvd.init()
    torch.manual_seed(1)
    model = network()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=config["lr"] * hvd.size(), momentum=0.9)
    first_epoch = restore(model, optimizer)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    digits = ray.train.get_dataset_shard("train")
    for epoch in range(first_epoch, config["epochs"]):
        # All shards have equal numbers of rows, so all ranks make equally many steps.
        for batch in digits.iter_torch_batches(batch_size=32, local_shuffle_buffer_size=256, drop_last=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            loss.backward()
            optimizer.step()
        figures = {"epoch": epoch + 1, "loss": float(hvd.allreduce(loss.detach())), "accuracy": accuracy(model)}
        report(figures, model, optimizer)


def accuracy(model: nn.Module) -> float:
    """Return the accuracy on the whole validation set. Each rank counts in its shard."""
    counts = torch.zeros(2)
    for batch in ray.train.get_dataset_shard("validation").iter_torch_batches(batch_size=128):
        right = (model(batch["image"]).argmax(dim=1) == batch["label"]).sum()
        counts += torch.tensor([float(right), float(len(batch["label"]))])
    right, all_of_them = hvd.allreduce(counts, op=hvd.Sum).tolist()
    return right / all_of_them


def report(figures: dict[str, Any], model: nn.Module, optimizer: Any) -> None:
    """Report figures from every rank and the checkpoint from rank 0. Ray copies it before the folder is deleted."""
    with tempfile.TemporaryDirectory() as folder:
        if hvd.rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": figures["epoch"]}
            torch.save(state, Path(folder, WEIGHTS))
        ray.train.report(figures, checkpoint=Checkpoint.from_directory(folder) if hvd.rank() == 0 else None)


def restore(model: nn.Module, optimizer: Any) -> int:
    """Restore a checkpoint, if a worker was lost or this run existed before. Return the number of completed epochs."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        state = torch.load(Path(folder, WEIGHTS), weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["epoch"])


def fit(workers: int, epochs: int, output: Path, name: str | None = None) -> Result:
    training, validation = digits()
    trainer = HorovodTrainer(
        train,
        train_loop_config={"lr": 0.02, "epochs": epochs},
        # Half a core for each worker leaves some for Ray Data, even on a machine with two cores.
        scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(
            name=name, storage_path=str(output.resolve()), failure_config=FailureConfig(max_failures=1)
        ),
        datasets={"train": training, "validation": validation},
    )
    return trainer.fit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--name", default=None, help="of the run: one that has this name already is continued")
    parser.add_argument("--output", type=Path, default=Path("example-output/ray"))
    options = parser.parse_args()
    ray.init()
    result = fit(options.workers, options.epochs, options.output, options.name)
    print(f"{options.workers} workers, {result.metrics['epoch']} epochs: accuracy {result.metrics['accuracy']:.1%}")
    print(f"checkpoint {result.checkpoint.path}")


if __name__ == "__main__":
    main()
