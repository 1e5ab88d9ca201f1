# SPDX-License-Identifier: Apache-2.0
"""Elastic training on Ray: kill a worker (its process id is printed) or a node, or add one, and training continues.

python examples/ray/elastic.py [--workers 2] [--epochs 20]
"""

import argparse
import os
from typing import Any

try:
    import ray

    from horovod.ray import ElasticRayExecutor, ray_logger
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install 'khorovod[ray,torch]'") from None


def train(epochs: int) -> float:
    import torch

    import horovod.torch as hvd

    hvd.init()
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, epoch=0, loss=float("inf"))

    @hvd.elastic.run
    def loop(state: Any) -> float:
        while state.epoch < epochs:
            for _ in range(20):
                inputs = torch.randn(32, 8)
                loss = torch.nn.functional.mse_loss(state.model(inputs), inputs.sum(1, keepdim=True))
                state.optimizer.zero_grad()
                loss.backward()
                state.optimizer.step()
            state.loss = hvd.allreduce(loss.detach()).item()
            state.epoch += 1
            ray_logger.log(
                {"epoch": state.epoch, "rank": hvd.rank(), "size": hvd.size(), "pid": os.getpid(), "loss": state.loss}
            )
            state.commit()
        return state.loss

    return loop(state)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2, help="at most so many")
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    ray.init()
    settings = ElasticRayExecutor.create_settings(min_num_proc=1, max_num_proc=options.workers)
    executor = ElasticRayExecutor(settings, cpus_per_slot=1, env_vars={"OMP_NUM_THREADS": 1})
    executor.start()
    losses = executor.run(lambda: train(options.epochs), callbacks=[print])
    print("final loss", losses[0])
