# SPDX-License-Identifier: Apache-2.0
"""Run a cluster that loses its head while two jobs run on it; print how the jobs and their workers end."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
from ray.cluster_utils import Cluster

LIMIT_S = 150
WORKERS = 2  # workers of each job

options = {"num_cpus": 2, "object_store_memory": 100 << 20, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=options)
cluster.add_node(**options)
program = [sys.executable, str(Path(__file__).parent / "train_forever.py")]
env = {**os.environ, "RAY_ADDRESS": cluster.address}
jobs = {
    kind: subprocess.Popen([*program, kind], env=env, stdout=subprocess.PIPE, text=True)
    for kind in ("static", "elastic")
}
workers: list[psutil.Process] = []
for job in jobs.values():
    assert job.stdout is not None
    workers += [psutil.Process(int(job.stdout.readline().split()[1])) for _ in range(WORKERS)]
cluster.head_node.kill_gcs_server()
lost_at = time.monotonic()
for kind, job in jobs.items():
    printed, _ = job.communicate(timeout=LIMIT_S)
    print(f"{kind} ended with {job.returncode} after {time.monotonic() - lost_at:.0f} s: {printed.splitlines()}")
_, left = psutil.wait_procs(workers, timeout=LIMIT_S)
print(f"{len(left)} workers left after {time.monotonic() - lost_at:.0f} s", flush=True)
for node in cluster.list_all_nodes():
    node.kill_all_processes(check_alive=False, allow_graceful=False)
os._exit(0)  # Ray's own shutdown would wait for the head
