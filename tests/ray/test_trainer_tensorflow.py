# SPDX-License-Identifier: Apache-2.0
"""HorovodTrainer with TensorFlow: Ray Data streams a dataset to the workers, which train on it together.

Ray decides which rows reach which worker, and in which order. So workers report the rows of each step, and the tests
compute what one process makes of those steps.
"""

from typing import Any

import numpy as np
import pytest
import ray.data
import ray.train
from ray.train import RunConfig, ScalingConfig

from horovod.ray import HorovodTrainer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WORKERS = 2
ROWS = 64
BATCH = 8
EPOCHS = 2
RATE = 0.5
START = [0.5, -0.25]  # slope and intercept of the line to be fitted


def columns(ids: Any) -> tuple[Any, Any]:
    """Return x and y of the rows with these numbers; no line fits y perfectly."""
    x = np.asarray(ids, dtype=np.float32) / ROWS
    return x, 2 * x + x * x - 1


def with_columns(batch: dict[str, Any]) -> dict[str, Any]:
    x, y = columns(batch["id"])
    return {"id": batch["id"], "x": x, "y": y}


def train() -> dict[str, Any]:
    """Train, and return the rows of all ranks by step, rank 0's first, and each rank's final weights."""
    import tensorflow as tf

    import horovod.tensorflow as hvd

    hvd.init()
    weights = tf.Variable(START if hvd.rank() == 0 else [9.0, 9.0])
    hvd.broadcast_variables([weights], root_rank=0)
    optimizer = tf.keras.optimizers.SGD(RATE)

    @tf.function
    def step(x: Any, y: Any) -> None:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean((weights[0] * x + weights[1] - y) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, [weights]), [weights], strict=True))

    shard = ray.train.get_dataset_shard("train")
    steps = []
    for _ in range(EPOCHS):
        for features, y in shard.to_tf(["id", "x"], "y", batch_size=BATCH):
            step(features["x"], y)
            steps.append(hvd.allgather(features["id"], name="rows").numpy().tolist())
    ends = hvd.allgather(weights[tf.newaxis], name="ends").numpy().tolist()
    return {"steps": steps, "ends": ends}


@pytest.fixture(scope="module")
def trained(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the value that rank 0 returned."""
    trainer = HorovodTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=WORKERS),
        run_config=RunConfig(storage_path=str(tmp_path_factory.mktemp("storage"))),
        datasets={"train": ray.data.range(ROWS).map_batches(with_columns)},
    )
    told = trainer.fit().return_value
    assert isinstance(told, dict)
    return told


def test_each_row_reaches_one_worker_in_each_epoch(trained: dict[str, Any]) -> None:
    steps = trained["steps"]
    assert [len(rows) for rows in steps] == [WORKERS * BATCH] * (EPOCHS * ROWS // (WORKERS * BATCH))
    for epoch in np.array_split(np.array(steps), EPOCHS):
        assert sorted(epoch.flatten().tolist()) == list(range(ROWS))


def test_weights_are_those_of_one_process(trained: dict[str, Any]) -> None:
    slope, intercept = START
    for rows in trained["steps"]:
        x, y = (column.astype(np.float64) for column in columns(rows))
        error = slope * x + intercept - y
        slope, intercept = slope - RATE * np.mean(2 * error * x), intercept - RATE * np.mean(2 * error)
    first, second = trained["ends"]
    assert first == second
    # The tolerance suits float32 and weights of about 1.
    np.testing.assert_allclose(first, [slope, intercept], rtol=0, atol=1e-6)
