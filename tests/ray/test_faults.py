# SPDX-License-Identifier: Apache-2.0
"""Frozen workers and killed coordinators: errors name the lost one within seconds, and nothing is left."""

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray

import horovod.numpy as hvd
from horovod.common.exceptions import HorovodInitializationError, HorovodInternalError
from horovod.ray import ElasticRayExecutor, RayExecutor, ray_logger

pytestmark = pytest.mark.timeout(200)

SECONDS = 45  # what "within seconds" may mean on a busy machine


def processes_of(actor_class: str) -> list[psutil.Process]:
    """Return the processes of the living actors of this class, on all simulated nodes."""
    actors = [actor for actor in ray._private.state.actors().values() if actor["State"] == "ALIVE"]
    return [psutil.Process(actor["Pid"]) for actor in actors if actor["ActorClassName"] == actor_class]


def assert_gone(processes: list[psutil.Process]) -> None:
    _, left = psutil.wait_procs(processes, timeout=SECONDS)
    assert not left


@pytest.fixture
def pair() -> Any:
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=60), num_workers=2)
    executor.start()
    yield executor
    executor.shutdown()


def test_a_frozen_worker_is_named(pair: RayExecutor) -> None:
    def train() -> None:
        hvd.init()
        hvd.barrier()
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        hvd.barrier()

    workers = processes_of("BaseHorovodWorker")
    assert len(workers) == 2
    begun = time.monotonic()
    with pytest.raises(HorovodInternalError, match="^rank 1 on node .* does not answer any more: .*rank 1 is lost"):
        pair.run(train)
    assert time.monotonic() - begun < SECONDS
    with pytest.raises(HorovodInternalError, match=r"^rank 1 on node .* Call shutdown\(\) and start\(\)"):
        pair.run(train)
    pair.shutdown()
    assert_gone(workers)


def test_fault_39_other_ranks_learn_which_error_ended_one(pair: RayExecutor, tmp_path: Path) -> None:
    def train(folder: Path) -> None:
        hvd.init()
        try:
            hvd.barrier()
            if hvd.rank() == 1:
                raise ValueError("boom")
            hvd.barrier()
        except HorovodInternalError as error:
            (folder / "told").write_text(str(error))
            raise

    with pytest.raises(ValueError, match="boom"):
        pair.run(train, args=[tmp_path])
    assert (tmp_path / "told").read_text() == "rank 1 raised ValueError: boom"


def test_fault_39_workers_of_an_elastic_job_learn_which_error_ended_one(tmp_path: Path) -> None:
    def train(folder: Path) -> int:
        from horovod.common.elastic import ObjectState, run_fn
        from horovod.common.objects import broadcast_object

        def reset() -> None:
            hvd.shutdown()
            hvd.init()

        def loop(state: Any) -> None:
            try:
                while state.step < 4:
                    if state.step == 2 and hvd.rank() == 1 and not (folder / "raised").exists():
                        (folder / "raised").touch()
                        raise ValueError("boom")
                    hvd.allreduce(np.ones(1), name="step")
                    state.step += 1
                    state.commit()
            except HorovodInternalError as error:
                (folder / "told").write_text(str(error))
                raise

        hvd.init()
        state = ObjectState(broadcast_object, hvd.rank, step=0)
        run_fn(loop, reset)(state)
        return int(state.step)

    settings = ElasticRayExecutor.create_settings(min_num_proc=2, max_num_proc=2, timeout_s=60)
    executor = ElasticRayExecutor(settings)
    executor.start()
    assert executor.run(lambda: train(tmp_path)) == [4, 4]
    assert (tmp_path / "told").read_text() == "rank 1 raised ValueError: boom"


def test_ranks_that_wait_for_a_coordinator_that_is_killed(pair: RayExecutor) -> None:
    def meet(coordinator: int) -> None:
        """Meet on rank 0 only: rank 1 kills the coordinator once rank 0 is connected to it."""
        if os.environ["HOROVOD_RANK"] == "0":
            hvd.init()
            return
        process = psutil.Process(coordinator)
        port = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
        while not any(one.laddr.port == port and one.status == "ESTABLISHED" for one in process.net_connections()):
            time.sleep(0.05)
        process.kill()
        process.wait(30)

    (coordinator,) = processes_of("_WorldCoordinator")
    begun = time.monotonic()
    with pytest.raises(HorovodInitializationError, match="the connection to the rendezvous at .* was lost") as caught:
        pair.run(meet, args=[coordinator.pid])
    assert time.monotonic() - begun < SECONDS  # less than the 60 s that ranks have for the rendezvous
    named = "the coordinator on node .*, where ranks meet, failed: its actor died"
    assert re.search(named, "\n".join(caught.value.__notes__))
    with pytest.raises(HorovodInternalError, match=rf"{named} .* Call shutdown\(\) and start\(\)"):
        pair.run(os.getpid)


def test_the_coordinator_of_an_elastic_job_is_killed() -> None:
    def train() -> None:
        hvd.init()
        ray_logger.log({"pid": os.getpid()})
        while True:
            hvd.barrier()

    workers: list[psutil.Process] = []
    killed_at = 0.0

    def kill(report: dict[str, int]) -> None:
        nonlocal killed_at
        workers.append(psutil.Process(report["pid"]))
        if len(workers) == 2:
            (coordinator,) = processes_of("ElasticCoordinator")
            coordinator.kill()
            killed_at = time.monotonic()

    executor = ElasticRayExecutor(ElasticRayExecutor.create_settings(min_num_proc=2, max_num_proc=2, timeout_s=60))
    executor.start()
    with pytest.raises(HorovodInternalError, match="^the coordinator of the elastic job is lost: its actor died"):
        executor.run(train, callbacks=[kill])
    assert time.monotonic() - killed_at < SECONDS
    assert_gone(workers)
