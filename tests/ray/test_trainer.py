# SPDX-License-Identifier: Apache-2.0
"""HorovodTrainer: one job that loses a worker and starts again, and one that resumes its run and fails.

A job of Ray Train takes at least ten seconds, so each job serves many tests. Workers write their observations into a
diary, a file with one line of JSON for each entry, which the tests read.
"""

import json
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.data
import ray.train
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from testkit.ray_metrics import await_metrics

import horovod.torch as hvd
from horovod.ray import HorovodConfig, HorovodTrainer
from horovod.ray.capacity import NotEnoughResourcesError

pytestmark = pytest.mark.timeout(400)

ROWS = 40
STEPS = 5
FIRST_LIFE = 3  # steps that the first group of workers completes
LEAST_COLLECTIVES = 1 + STEPS - FIRST_LIFE  # minimum for the second group, whose first collective adds up the rows
METRICS = {
    "ray_horovod_size": 2,
    "ray_horovod_collectives_total": LEAST_COLLECTIVES,
    "ray_horovod_bytes_total": 4000,
}


class Diary:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def write(self, what: str, **entry: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"what": what, "at": time.time(), **entry}) + "\n")

    def all(self, what: str) -> list[dict[str, Any]]:
        """Return the entries by rank, in the order in which they were written."""
        entries = [json.loads(line) for line in self.path.read_text().splitlines()]
        return sorted((entry for entry in entries if entry["what"] == what), key=lambda entry: entry["rank"])


def loop(config: dict[str, Any]) -> str:
    hvd.init()
    diary = Diary(config["diary"])
    start = saved_step()
    diary.write("life", **place(), start=start)
    seen = sum_of_all_rows() if config["reads"] and start > 0 else 0.0
    for step in range(start, config["until"]):
        if step == FIRST_LIFE and start == 0 and hvd.rank() == 1:
            diary.write("death", rank=1)
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            hvd.allreduce_(torch.ones(1000), name="gradient")
        except Exception as error:
            diary.write("error", rank=hvd.rank(), text=f"{type(error).__name__}: {error}")
            raise
        report(step + 1, seen)
    if config["reports_without_checkpoint"]:
        ray.train.report({"step": step + 1, "seen": seen, "rank": hvd.rank()})
    if config["scrapes"]:
        diary.write("metrics", rank=hvd.rank(), found=await_metrics("lost", [hvd.rank()], METRICS)[hvd.rank()])
    if config["fails"] and hvd.rank() == 1:
        raise ValueError("rank 1 has had enough")
    if config["fails"]:
        hvd.allreduce(torch.ones(1), name="rank 1 never comes")
    return "done"


def place() -> dict[str, Any]:
    context = ray.train.get_context()
    return {
        "rank": hvd.rank(),
        "numbers": [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()],
        "ray": [context.get_world_rank(), context.get_world_size()],
        "node": ray.get_runtime_context().get_node_id(),
        "host": os.environ["HOROVOD_HOSTNAME"],
    }


def saved_step() -> int:
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        return int(Path(folder, "step").read_text())


def report(step: int, seen: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "step").write_text(str(step))
        checkpoint = ray.train.Checkpoint.from_directory(folder) if hvd.rank() == 0 else None
        ray.train.report({"step": step, "seen": seen}, checkpoint=checkpoint)


def sum_of_all_rows() -> float:
    shard = ray.train.get_dataset_shard("train")
    mine = sum(float(batch["id"].sum()) for batch in shard.iter_torch_batches(batch_size=8))
    return float(hvd.allreduce(torch.tensor([mine]), op=hvd.Sum, name="rows")[0])


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("storage")


@pytest.fixture(scope="module")
def lost(cluster: Any, storage: Path) -> tuple[ray.train.Result, Diary]:
    """Run a job on two nodes whose rank 1 dies after FIRST_LIFE steps."""
    diary = Diary(storage / "lost.diary")
    trainer = HorovodTrainer(
        loop,
        train_loop_config={
            "diary": str(diary.path),
            "until": STEPS,
            "reads": True,
            "scrapes": True,
            "fails": False,
            "reports_without_checkpoint": True,
        },
        scaling_config=ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD"),
        run_config=RunConfig(name="lost", storage_path=str(storage), failure_config=FailureConfig(max_failures=1)),
        datasets={"train": ray.data.range(ROWS)},
    )
    return trainer.fit(), diary


@pytest.fixture(scope="module")
def failed(lost: Any, storage: Path) -> tuple[Exception, Diary]:
    """Resume the same run under its name, with one worker or two, one of which raises."""
    diary = Diary(storage / "failed.diary")
    trainer = HorovodTrainer(
        loop,
        train_loop_config={
            "diary": str(diary.path),
            "until": STEPS + 1,
            "reads": False,
            "scrapes": False,
            "fails": True,
            "reports_without_checkpoint": False,
        },
        scaling_config=ScalingConfig(num_workers=(1, 2)),
        run_config=RunConfig(name="lost", storage_path=str(storage)),
    )
    with pytest.raises(ray.train.TrainingFailedError) as caught:
        trainer.fit()
    return caught.value, diary


def test_workers_are_ranks_on_their_nodes(lost: tuple[Any, Diary]) -> None:
    lives = lost[1].all("life")
    assert [life["numbers"] for life in lives] == [[0, 2, 0, 1, 0, 2]] * 2 + [[1, 2, 0, 1, 1, 2]] * 2
    assert [life["ray"] for life in lives] == [[0, 2], [0, 2], [1, 2], [1, 2]]
    assert all(life["host"] == life["node"] for life in lives)
    assert len({life["node"] for life in lives}) == 2


def test_a_lost_worker_is_named_and_all_start_again_from_the_last_checkpoint(lost: tuple[Any, Diary]) -> None:
    result, diary = lost
    (death,), (error,) = diary.all("death"), diary.all("error")
    assert error["rank"] == 0
    assert error["text"].startswith("HorovodInternalError: rank 1 is lost")
    assert error["at"] - death["at"] < 10
    starts = [life["start"] for life in diary.all("life")]
    # Ray decides which checkpoint it knows when the worker dies, but all workers start from the same one.
    assert starts[0] == starts[2] == 0
    assert 1 <= starts[1] == starts[3] <= FIRST_LIFE
    assert result.metrics["step"] == STEPS
    with result.checkpoint.as_directory() as folder:
        assert Path(folder, "step").read_text() == str(STEPS)


def test_metrics_are_rank_0s_last_report_also_one_after_the_last_checkpoint(lost: tuple[Any, Diary]) -> None:
    assert lost[0].metrics == {"step": STEPS, "seen": sum(range(ROWS)), "rank": 0}
    assert "rank" not in lost[0].metrics_dataframe  # Ray fills it with the metrics of checkpoints only


def test_each_row_of_the_dataset_goes_to_one_worker(lost: tuple[Any, Diary]) -> None:
    assert lost[0].metrics["seen"] == sum(range(ROWS))


def test_metrics_reach_the_port_of_the_node(lost: tuple[Any, Diary]) -> None:
    """Check the size that each worker has scraped. Workers wait for the values in METRICS."""
    assert [entry["found"]["ray_horovod_size"] for entry in lost[1].all("metrics")] == [2, 2]


def test_a_run_of_the_same_name_goes_on_from_its_checkpoint(failed: tuple[Exception, Diary]) -> None:
    assert [(life["start"], life["ray"]) for life in failed[1].all("life")] == [(STEPS, [0, 2]), (STEPS, [1, 2])]


def test_the_error_is_that_of_the_worker_that_raised(failed: tuple[Exception, Diary]) -> None:
    assert "rank 1 has had enough" in str(failed[0])
    assert "HorovodInternalError" not in str(failed[0])


@pytest.mark.parametrize("workers", [5, (5, 6)])
def test_more_workers_than_the_cluster_can_hold(cluster: Any, workers: Any) -> None:
    limit = HorovodConfig(placement_group_timeout_s=1)
    scaling = ScalingConfig(num_workers=workers)
    trainer = HorovodTrainer(lambda: None, horovod_config=limit, scaling_config=scaling)
    with pytest.raises(NotEnoughResourcesError, match=r"5 workers with CPU 1 each .* at most 4.* within 1 s"):
        trainer.fit()


def test_the_secret_is_not_shown() -> None:
    config = HorovodConfig(key="hush hush hush hush", ssh_str="hush")
    assert "hush" not in repr(config)
    assert "hush" not in json.dumps(config.to_dict())
