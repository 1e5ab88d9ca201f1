# SPDX-License-Identifier: Apache-2.0
"""Use static and elastic executors through Ray's client. argv[1] is a ray:// address."""

import sys

import ray

from horovod.ray import ElasticRayExecutor, RayExecutor, ray_logger


def train(factor: float) -> float:
    import numpy as np

    import horovod.numpy as hvd

    hvd.init()
    ray_logger.log({"rank": hvd.rank()})
    return float(hvd.allreduce(np.array([hvd.rank() * factor]), op=hvd.Sum)[0])


def fail() -> None:
    import os

    if os.environ["HOROVOD_RANK"] == "1":
        os._exit(3)


ray.init(sys.argv[1], log_to_driver=False)
assert ray.util.client.ray.is_connected()
heard: list[int] = []
executor = RayExecutor(RayExecutor.create_settings(timeout_s=60), num_workers=2)
executor.start()
print("static", executor.run(train, args=[2.0], callbacks=[lambda info: heard.append(info["rank"])]), sorted(heard))
try:
    executor.run(fail)
except RuntimeError as error:
    print("failed", error)
executor.shutdown()
elastic = ElasticRayExecutor(ElasticRayExecutor.create_settings(min_num_proc=1, max_num_proc=2, timeout_s=60))
elastic.start()
print("elastic", elastic.run(lambda: train(3.0)))
ray.shutdown()
