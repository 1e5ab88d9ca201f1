# SPDX-License-Identifier: Apache-2.0
"""Train until Ray's head is lost, with the executor that argv[1] names; print its workers, then each refusal."""

import os
import sys
import time

import ray

from horovod.ray import ElasticRayExecutor, RayExecutor, head, ray_logger


def train() -> None:
    import horovod.numpy as hvd

    hvd.init()
    ray_logger.log({"pid": os.getpid()})
    while True:
        hvd.barrier()
        time.sleep(0.01)


def new_executor() -> ElasticRayExecutor | RayExecutor:
    if sys.argv[1] == "static":
        return RayExecutor(RayExecutor.create_settings(timeout_s=60), num_workers=2)
    return ElasticRayExecutor(ElasticRayExecutor.create_settings(min_num_proc=2, max_num_proc=2, timeout_s=60))


ray.init(log_to_driver=False)
executor = new_executor()
executor.start()
for request in (
    lambda: executor.run(train, callbacks=[lambda worker: print("worker", worker["pid"], flush=True)]),
    lambda: executor.run(train),
    lambda: new_executor().start(),
):
    try:
        request()
    except head.HeadNodeLostError as error:
        print("refused", error, flush=True)
