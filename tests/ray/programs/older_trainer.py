# SPDX-License-Identifier: Apache-2.0
"""Use Ray's own HorovodTrainer, of Ray Train's first version, as users have written it, unchanged for Khorovod."""

import sys

import ray
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.horovod import HorovodConfig, HorovodTrainer


def train(config):
    import torch

    import horovod.torch as hvd

    hvd.init()
    total = hvd.allreduce(torch.tensor([1.0 + hvd.rank()]), op=hvd.Sum).item()
    ray.train.report({"total": total, "size": hvd.size(), "local": hvd.local_size(), "lr": config["lr"]})


ray.init(log_to_driver=False)
trainer = HorovodTrainer(
    train,
    train_loop_config={"lr": 0.5},
    horovod_config=HorovodConfig(timeout_s=60),
    scaling_config=ScalingConfig(num_workers=2, trainer_resources={"CPU": 0}),
    run_config=RunConfig(storage_path=sys.argv[1]),
)
metrics = trainer.fit().metrics
print("told", metrics["total"], metrics["size"], metrics["lr"])
