# SPDX-License-Identifier: Apache-2.0
"""Learn to read handwritten digits with DistributedDataParallel and the horovod backend.

    torchrun --nproc-per-node 2 ddp_digits.py
    horovodrun -np 2 python ddp_digits.py

The script also runs with init_process_group("gloo"): only that name differs. Needs scikit-learn for its digits.
"""

from __future__ import annotations

import argparse

try:
    import torch
    import torch.distributed as dist
    from sklearn.datasets import load_digits
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    import horovod.torch.distributed  # noqa: F401 - registers the backend; torch 2.5 and later find it by themselves
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[examples]'") from None


def datasets() -> tuple[TensorDataset, TensorDataset]:
    """Return training and test digits, four fifths and one fifth. The split is equal on every rank."""
    bunch = load_digits()
    images = torch.tensor(bunch.data / 16, dtype=torch.float32)
    labels = torch.tensor(bunch.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    cut = len(order) * 4 // 5
    learn, test = order[:cut], order[cut:]
    return TensorDataset(images[learn], labels[learn]), TensorDataset(images[test], labels[test])


def accuracy(model: torch.nn.Module, test: TensorDataset) -> float:
    """Return the accuracy over all ranks, each of which reads its part of the test digits."""
    images, labels = test[dist.get_rank() :: dist.get_world_size()]
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).sum()
    counts = torch.tensor([float(right), float(len(labels))])
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="for each rank")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("horovod")
    learn, test = datasets()
    sampler: DistributedSampler[TensorDataset] = DistributedSampler(learn, drop_last=True)
    loader = DataLoader(learn, options.batch_size, sampler=sampler)
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(1, options.epochs + 1):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        reached = accuracy(network, test)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}/{options.epochs}: loss {loss.item():.3f}, accuracy {reached:.1%}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
