# SPDX-License-Identifier: Apache-2.0
"""One cluster of simulated nodes for all tests: a head without CPUs, and two nodes with two CPUs and two GPUs each."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before any module imports Ray
# With these settings, jobs of Ray Train wait less and start one process less.
os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
# Ray's proxy of clients forks to start a server while its other threads are inside gRPC. gRPC's fork handlers sometimes
# crash the child (gRPC 1.85). The child does not need them, because it only executes another program.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import ray
from ray.cluster_utils import Cluster
from testkit.speed import patience

from horovod.common.torchrun_variables import free_port

STORE_BYTES = 100 << 20
CLIENT_PORT = free_port()  # where programs reach the cluster with ray:// addresses


@pytest.fixture
def client_address() -> str:
    return f"ray://127.0.0.1:{CLIENT_PORT}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore warnings about sockets and files that Ray leaves to the garbage collector when it starts nodes here."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


def node_options(**others: Any) -> dict[str, Any]:
    return {"num_cpus": 2, "object_store_memory": STORE_BYTES, "include_dashboard": False, **others}


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    # With the dashboard a job of Ray Train ends twelve seconds sooner, because it asks the dashboard what is still
    # alive.
    board = {"include_dashboard": True, "dashboard_port": free_port()}
    cluster = Cluster()
    try:
        reports = {"metrics_report_interval_ms": 1000}
        cluster.add_node(
            **node_options(num_cpus=0, ray_client_server_port=CLIENT_PORT, _system_config=reports, **board)
        )
        for _ in range(2):
            cluster.add_node(wait=False, **node_options(num_gpus=2))
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
    finally:
        started = psutil.Process().children(recursive=True)
        ray.shutdown()
        cluster.shutdown()
        psutil.wait_procs(started, timeout=30)  # processes of Ray's dashboard end on their own, after a while


@pytest.fixture
def add_node(cluster: Cluster) -> Iterator[Callable[..., Any]]:
    """Yield a function that adds a node with `options` of node_options. All added nodes are removed after the test."""
    added: list[Any] = []

    def add(**options: Any) -> Any:
        added.append(cluster.add_node(wait=False, **node_options(**options)))
        return added[-1]

    yield add
    for node in added:
        cluster.remove_node(node)  # gracefully, so that Ray notices at once and not after 15 s of silence
    gone = {node.node_id for node in added}
    deadline = time.monotonic() + patience(60)
    while gone & {node["NodeID"] for node in ray.nodes() if node["Alive"]}:
        assert time.monotonic() < deadline, "Ray still shows nodes that were removed"
        time.sleep(0.1)


@pytest.fixture(scope="session", autouse=True)
def _connected(cluster: Cluster) -> None:
    """Connect the tests to the cluster as one driver."""
