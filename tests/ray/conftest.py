# SPDX-License-Identifier: Apache-2.0
"""One cluster of simulated nodes for all tests: a head without CPUs, and two nodes with two CPUs and two GPUs each."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

# Before Ray is imported anywhere: its own view of usage is nobody's business, and workers print only what tests read.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
from ray.cluster_utils import Cluster

STORE_BYTES = 100 << 20


def node_options(**others: Any) -> dict[str, Any]:
    return {"num_cpus": 2, "object_store_memory": STORE_BYTES, "include_dashboard": False, **others}


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    head = node_options(num_cpus=0)
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            cluster.add_node(wait=False, **node_options(num_gpus=2))
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(autouse=True)
def _connected(request: pytest.FixtureRequest) -> None:
    """Tests that do not ask for the cluster may use it all the same."""
    if "without_cluster" not in request.keywords:
        request.getfixturevalue("cluster")
