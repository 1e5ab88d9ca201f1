# SPDX-License-Identifier: Apache-2.0
"""A job whose cluster loses its head: the next request is refused, and one under way is given up."""

import os
import sys
import time

import ray
from ray.cluster_utils import Cluster

from horovod.ray import RayExecutor, head


def sleep() -> None:
    time.sleep(300)


head.GIVE_UP_AFTER_S = 5.0
options = {"object_store_memory": 100 << 20, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **options})
ray.init(address=cluster.address, log_to_driver=False)
executor = RayExecutor(RayExecutor.create_settings(timeout_s=60), num_workers=2)
executor.start()
print("started", executor.run(lambda: 1), flush=True)


def when_it_goes(waits: object) -> None:
    cluster.head_node.kill_gcs_server()


def wait_and_tell() -> None:
    from horovod.ray import ray_logger

    ray_logger.log({})
    time.sleep(300)


for request, arguments in ((wait_and_tell, {"callbacks": [when_it_goes]}), (sleep, {})):
    begun = time.monotonic()
    try:
        executor.run(request, **arguments)
    except head.HeadNodeLostError as error:
        print(f"after {time.monotonic() - begun:.0f} s: {error}", flush=True)
try:
    RayExecutor(RayExecutor.create_settings(), num_workers=1).start()
except head.HeadNodeLostError as error:
    print("start:", error, flush=True)
for process in cluster.head_node.live_processes():
    process[1].kill()
sys.stdout.flush()
os._exit(0)  # Ray's own end would wait for its head
