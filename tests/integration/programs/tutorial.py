# SPDX-License-Identifier: Apache-2.0
"""Training program in the style of Horovod's PyTorch tutorials: six changes to a script for one process."""

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
import torch.utils.data.distributed

import horovod.torch as hvd

# 1. Initialise.
hvd.init()
torch.manual_seed(42)

# 2. Pin a GPU to each process.
if torch.cuda.is_available():
    torch.cuda.set_device(hvd.local_rank())
    torch.cuda.manual_seed(42)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 8, kernel_size=3)
        self.drop = torch.nn.Dropout2d(p=0.1)
        self.fc = torch.nn.Linear(8 * 3 * 3, 4)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.drop(self.conv(x)), 2))
        return F.log_softmax(self.fc(x.flatten(1)), dim=1)


# The class of an image is the number of the quarter that is bright.
generator = torch.Generator().manual_seed(0)
labels = torch.arange(256) % 4
images = 0.3 * torch.randn(256, 1, 8, 8, generator=generator)
for image, label in zip(images, labels, strict=True):
    image[0, 4 * (label // 2) : 4 * (label // 2) + 4, 4 * (label % 2) : 4 * (label % 2) + 4] += 1
train_dataset = torch.utils.data.TensorDataset(images[:192], labels[:192])
test_dataset = torch.utils.data.TensorDataset(images[192:], labels[192:])

# 3. Every process reads its own part of the data.
train_sampler = torch.utils.data.distributed.DistributedSampler(train_dataset, num_replicas=hvd.size(), rank=hvd.rank())
train_loader = torch.utils.data.DataLoader(train_dataset, batch_size=16, sampler=train_sampler)
test_sampler = torch.utils.data.distributed.DistributedSampler(test_dataset, num_replicas=hvd.size(), rank=hvd.rank())
test_loader = torch.utils.data.DataLoader(test_dataset, batch_size=32, sampler=test_sampler)

model = Net()

# 4. Scale the learning rate by the number of processes, and wrap the optimizer.
optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.5)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

# 5. Start from the same state everywhere.
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)


def train(epoch):
    model.train()
    train_sampler.set_epoch(epoch)
    for batch_idx, (data, target) in enumerate(train_loader):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        # 6. Only one process prints.
        if batch_idx % 5 == 0 and hvd.rank() == 0:
            print(f"Train Epoch: {epoch} [{batch_idx * len(data)}/{len(train_sampler)}]\tLoss: {loss.item():.6f}")


def metric_average(val, name):
    return hvd.allreduce(torch.tensor(val), name=name).item()


def test():
    model.eval()
    test_loss, test_accuracy = 0.0, 0.0
    with torch.no_grad():
        for data, target in test_loader:
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            test_accuracy += output.argmax(1).eq(target).sum().item()
    test_loss = metric_average(test_loss / len(test_sampler), "avg_loss")
    test_accuracy = metric_average(test_accuracy / len(test_sampler), "avg_accuracy")
    if hvd.rank() == 0:
        print(f"Test set: Average loss: {test_loss:.4f}, Accuracy: {100.0 * test_accuracy:.2f}%")


for epoch in range(1, 5):
    train(epoch)
    test()
