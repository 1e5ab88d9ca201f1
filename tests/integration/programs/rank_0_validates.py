# SPDX-License-Identifier: Apache-2.0
"""Training program in the style of the tutorials: no named parameters, and only rank 0 validates and saves."""

import os
import sys

import torch

import horovod.torch as hvd

hvd.init()
if torch.cuda.is_available():
    torch.cuda.set_device(hvd.local_rank())

torch.manual_seed(hvd.rank())  # a different seed for each rank, so that only the broadcast can make the models equal
truth = torch.tensor([[2.0], [-1.0], [0.5]])
generator = torch.Generator().manual_seed(0)
inputs = torch.randn(240, 3, generator=generator)
targets = inputs @ truth + 0.3
train_dataset = torch.utils.data.TensorDataset(inputs[:200], targets[:200])

train_sampler = torch.utils.data.distributed.DistributedSampler(train_dataset, num_replicas=hvd.size(), rank=hvd.rank())
train_loader = torch.utils.data.DataLoader(train_dataset, batch_size=10, sampler=train_sampler)

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

for epoch in range(20):
    train_sampler.set_epoch(epoch)
    for data, target in train_loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(data), target)
        loss.backward()
        optimizer.step()
    if hvd.rank() == 0:
        with torch.no_grad():
            validation_loss = torch.nn.functional.mse_loss(model(inputs[200:]), targets[200:]).item()
        print(f"epoch {epoch}: validation loss {validation_loss:.6f}")
        torch.save({"epoch": epoch, "model": model.state_dict()}, os.path.join(sys.argv[1], "checkpoint.pt"))

print("weights " + " ".join(f"{weight:.9g}" for weight in model.weight.flatten().tolist()))
