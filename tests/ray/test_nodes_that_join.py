# SPDX-License-Identifier: Apache-2.0
"""Requests that are larger than the cluster wait for nodes that join, and then use them."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.train
from ray.train import RunConfig, ScalingConfig

import horovod.numpy as hvd
from horovod.common.log import logger
from horovod.ray import HorovodConfig, HorovodTrainer, RayExecutor

pytestmark = pytest.mark.timeout(240)

CPUS = 3  # more than a node of the cluster has
LIMIT_S = 120


class Joins(logging.Handler):
    """Log handler that adds a node to the cluster once Horovod has logged that it waits for one."""

    def __init__(self, add_node: Callable[..., Any]) -> None:
        super().__init__()
        self.add_node = add_node
        self.added: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "for nodes to join" in record.getMessage():
            self.added.append(self.add_node(num_cpus=CPUS).node_id)


@pytest.fixture
def joins(add_node: Callable[..., Any]) -> Iterator[Joins]:
    handler = Joins(add_node)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def test_an_executor_uses_a_node_that_joins_in_time(joins: Joins) -> None:
    settings = RayExecutor.create_settings(timeout_s=60, placement_group_timeout_s=LIMIT_S)
    executor = RayExecutor(settings, num_workers=1, cpus_per_worker=CPUS)
    executor.start()
    try:
        nodes = executor.run(lambda: ray.get_runtime_context().get_node_id())
    finally:
        executor.shutdown()
    assert nodes == joins.added


def report_without_checkpoints() -> str:
    hvd.init()
    for step in range(2):
        ray.train.report({"step": step, "rank": hvd.rank()})
    return str(ray.get_runtime_context().get_node_id())


@pytest.mark.slow
def test_a_trainer_uses_a_node_that_joins_in_time_and_shows_the_last_report(joins: Joins, tmp_path: Path) -> None:
    trainer = HorovodTrainer(
        report_without_checkpoints,
        horovod_config=HorovodConfig(placement_group_timeout_s=LIMIT_S),
        scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": CPUS}),
        run_config=RunConfig(storage_path=str(tmp_path)),
    )
    result = trainer.fit()
    assert joins.added == [result.return_value]
    assert result.checkpoint is None
    assert result.metrics == {"step": 1, "rank": 0}
    assert trainer._last_report.take() is None  # nothing is left in Ray's store
