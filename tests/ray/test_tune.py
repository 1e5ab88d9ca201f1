# SPDX-License-Identifier: Apache-2.0
"""Ray Tune: two distributed trials at once, each a separate world in its trial's placement group."""

from pathlib import Path
from typing import Any

import pytest
from ray import tune

import horovod.numpy as hvd
from horovod.ray import RayExecutor, ray_logger


def train(number: int, steps: int) -> list[int]:
    import numpy as np

    hvd.init()
    together: list[int] = []
    for step in range(steps):
        together = [int(value) for value in hvd.allgather(np.array([number]))]
        if hvd.rank() == 0:
            ray_logger.log({"step": step, "score": number, "together": together})
    return together


def trial(config: dict[str, Any]) -> None:
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=60), num_workers=2, cpus_per_worker=0.5)
    executor.start()
    executor.run(train, args=[config["number"], 3], callbacks=[tune.report])
    executor.shutdown()


@pytest.mark.timeout(150)
def test_two_trials_at_once(tmp_path: Path) -> None:
    resources = tune.PlacementGroupFactory([{"CPU": 0.5}] * 3)
    tuner = tune.Tuner(
        tune.with_resources(trial, resources),
        param_space={"number": tune.grid_search([10, 20])},
        tune_config=tune.TuneConfig(metric="score", mode="max", max_concurrent_trials=2),
        run_config=tune.RunConfig(storage_path=str(tmp_path), name="worlds", verbose=0),
    )
    results = tuner.fit()
    assert not results.errors
    assert {result.config["number"]: result.metrics["together"] for result in results} == {10: [10, 10], 20: [20, 20]}
    assert all(result.metrics["step"] == 2 for result in results)
    assert results.get_best_result().config["number"] == 20
