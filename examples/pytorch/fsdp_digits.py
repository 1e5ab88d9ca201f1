# SPDX-License-Identifier: Apache-2.0
"""Learn to read handwritten digits with fully_shard (FSDP2): every rank holds a part of each parameter.

    torchrun --nproc-per-node 2 fsdp_digits.py
    horovodrun -np 2 python fsdp_digits.py

Needs torch 2.6 or later, and scikit-learn for its digits.
"""

from __future__ import annotations

import argparse

try:
    import torch
    import torch.distributed as dist
    from ddp_digits import accuracy, datasets
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    import horovod.torch.distributed  # noqa: F401 - registers the backend
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[examples]'") from None


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
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(1, options.epochs + 1):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        reached = accuracy(model, test)
        if dist.get_rank() == 0:
            held = sum(parameter.to_local().numel() for parameter in model.parameters())
            whole = sum(parameter.numel() for parameter in model.parameters())
            print(
                f"epoch {epoch}/{options.epochs}: loss {loss.item():.3f}, accuracy {reached:.1%}, "
                f"rank 0 holds {held} of {whole} numbers",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
