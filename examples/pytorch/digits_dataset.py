# SPDX-License-Identifier: Apache-2.0
"""scikit-learn's handwritten digits (part of the package, no download) and a network that reads them."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import horovod.torch as hvd


class DigitsNet(nn.Sequential):
    """Network of two convolutions and two linear layers for images of 8 by 8 pixels."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )


def load() -> tuple[TensorDataset, TensorDataset]:
    """Return training and validation digits, four fifths and one fifth. The split is equal on every rank."""
    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(bunch.images, dtype=torch.float32)[order].unsqueeze(1) / 16
    labels = torch.tensor(bunch.target, dtype=torch.int64)[order]
    cut = len(labels) * 4 // 5
    return TensorDataset(images[:cut], labels[:cut]), TensorDataset(images[cut:], labels[cut:])


def training_loader(dataset: TensorDataset, batch_size: int, seed: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Return this rank's part of the training data. All ranks shuffle alike, so that no example is used twice."""
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(
        dataset, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=True, seed=seed
    )
    return DataLoader(dataset, batch_size, sampler=sampler, drop_last=True)


def validate(model: nn.Module, dataset: TensorDataset, device: torch.device) -> tuple[float, float]:
    """Return mean loss and accuracy on the whole validation set. Each rank reads its share."""
    images, labels = (tensor[hvd.rank() :: hvd.size()].to(device) for tensor in dataset.tensors)
    model.eval()
    with torch.no_grad():
        scores = model(images)
        loss = nn.functional.cross_entropy(scores, labels, reduction="sum")
        right = (scores.argmax(dim=1) == labels).sum()
    model.train()
    # Add up sums, not means, because the ranks' shares may differ in size by one.
    sums = torch.tensor([loss.item(), right.item(), len(labels)], dtype=torch.float64)
    loss_sum, rights, count = hvd.allreduce(sums, op=hvd.Sum, name="validation").tolist()
    return loss_sum / count, rights / count
