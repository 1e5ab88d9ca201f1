# SPDX-License-Identifier: Apache-2.0
"""Elastic training with PyTorch: kill any worker, and the others continue; stop the job, and start it again.

horovodrun -np 4 --min-np 2 python examples/elastic/pytorch_digits.py
"""

from __future__ import annotations

try:
    import torch
    from elastic_digits import GLOBAL_BATCH, Digits, Progress, arguments
    from torch.utils.data import DataLoader, TensorDataset

    import horovod.torch as hvd
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[torch]'") from None


def main() -> None:
    options = arguments(__doc__)
    digits = Digits()
    dataset = TensorDataset(torch.from_numpy(digits.images), torch.from_numpy(digits.labels).long())
    progress = Progress(options)
    model = torch.nn.Sequential(torch.nn.Linear(digits.pixels, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    # Make the optimizer before hvd.init(): PyTorch's imports for it take time, and other workers would have to wait.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(dataset)

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        # Training restarts here when workers change, so compute here what depends on their number.
        batch_size = GLOBAL_BATCH // hvd.size()
        while state.epoch < options.epochs:
            loss = torch.zeros([])
            for batch, (images, labels) in enumerate(DataLoader(dataset, batch_size, sampler=state.sampler)):
                state.optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(state.model(images), labels)
                loss.backward()
                state.optimizer.step()
                state.sampler.record_batch(batch, len(labels))
                state.step += 1
                progress.step(hvd.rank(), hvd.size(), state.step, loss.item())
                state.commit()
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
            progress.epoch(hvd.rank(), hvd.size(), state.epoch, loss.item())
        state.commit()

    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, step=0)
    hvd.elastic.checkpoint(state, options.output / "pytorch", every=10)
    train(state)


if __name__ == "__main__":
    main()
