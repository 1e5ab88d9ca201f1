# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs on Ray: actors are killed, nodes come and go, and the other workers recover in their processes."""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
from testkit.awaiting import await_that
from testkit.ray_metrics import await_metrics

import horovod.numpy as hvd
from horovod.common import checkpoint_file, place_variables
from horovod.common.checkpoint_folder import list_files, path_of
from horovod.common.lineage import CommitId
from horovod.launcher.elastic.vocabulary import Limits
from horovod.ray import ElasticRayExecutor, RayExecutor, ray_logger
from horovod.ray.discovery import head_node
from horovod.ray.elastic import RayHostDiscovery, TestDiscovery
from horovod.ray.elastic_coordinator import ElasticCoordinator

pytestmark = pytest.mark.timeout(240)


def train(end: str) -> tuple[int, int, int, list[int]]:
    """Train step by step until the file `end` exists; log each world and the sizes of this process's earlier worlds."""
    import time

    import numpy as np

    from horovod.common.elastic import ObjectState, run_fn
    from horovod.common.objects import broadcast_object

    def reset() -> None:
        hvd.shutdown()
        hvd.init()

    hvd.init()
    mine: list[int] = []  # sizes of the worlds that contained this process
    state = ObjectState(broadcast_object, hvd.rank, step=0, total=0.0)

    def loop(state: Any) -> None:
        mine.append(hvd.size())
        place = {"rank": hvd.rank(), "size": hvd.size(), "host": os.environ["HOROVOD_HOSTNAME"]}
        ray_logger.log({**place, "pid": os.getpid(), "worlds": list(mine)})
        while True:
            over = hvd.allreduce(np.array([float(os.path.exists(end))]), op=hvd.Max, name="over")
            if over[0]:
                return
            state.step += 1
            state.total += float(hvd.allreduce(np.ones(1), op=hvd.Average, name="one")[0])
            state.commit()
            time.sleep(0.01)

    run_fn(loop, reset)(state)
    assert state.total == state.step  # no step was lost or done twice
    return hvd.rank(), hvd.size(), state.step, mine


class Director:
    """Callback that collects the newest world's reports, and runs the next act once a world of its size is complete."""

    def __init__(self, *acts: tuple[int, Any]) -> None:
        self.acts = list(acts)
        self.world: dict[int, dict[str, Any]] = {}
        self.history: list[int] = []

    def __call__(self, report: dict[str, Any]) -> None:
        if report["rank"] in self.world or any(one["size"] != report["size"] for one in self.world.values()):
            self.world = {}
        self.world[report["rank"]] = report
        if len(self.world) < report["size"]:
            return
        self.history.append(report["size"])
        if self.acts and self.acts[0][0] == report["size"]:
            self.acts.pop(0)[1](dict(self.world))


def test_actors_and_nodes_come_and_go(cluster: Any, tmp_path: Path) -> None:
    """Run four workers on two nodes.

    One is killed and replaced; a node joins, and is killed with its two workers.
    """
    end = tmp_path / "end"
    added: list[Any] = []
    options = {"num_cpus": 2, "object_store_memory": 100 << 20, "include_dashboard": False}

    def kill_a_worker(world: dict[int, dict[str, Any]]) -> None:
        os.kill(world[3]["pid"], signal.SIGKILL)

    def add_a_node(world: dict[int, dict[str, Any]]) -> None:
        added.append(cluster.add_node(wait=False, **options))

    def kill_the_node(world: dict[int, dict[str, Any]]) -> None:
        assert Counter(one["host"] for one in world.values())[added[0].node_id] == 2
        cluster.remove_node(added[0], allow_graceful=False)

    director = Director((4, kill_a_worker), (4, add_a_node), (6, kill_the_node), (4, lambda world: end.touch()))
    executor = ElasticRayExecutor(
        ElasticRayExecutor.create_settings(min_num_proc=2, max_num_proc=6, timeout_s=60),
        env_vars={"OMP_NUM_THREADS": 1},
    )
    executor.start()
    results = executor.run(lambda: train(str(end)), callbacks=[director])
    assert not director.acts, director.history
    assert [(rank, size) for rank, size, _, _ in results] == [(rank, 4) for rank in range(4)]
    assert len({step for _, _, step, _ in results}) == 1
    # Rank 0 was in every world, in one process.
    assert results[0][3][0] == 4
    assert 6 in results[0][3]
    await_that(lambda: added[0].node_id not in nodes_alive(), limit_s=60)  # else the next test gets a worker there


def nodes_alive() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def places_in_the_environment() -> tuple[list[int], list[int], list[int]]:
    """Return this worker's numbers before hvd.init(), after it, and the true ones. The mark of planned numbers is 1."""
    names = (*place_variables.NAMES, place_variables.PLANNED)
    before = [int(os.environ.get(name, "0")) for name in names]
    hvd.init()
    true = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size(), 0]
    return before, [int(os.environ.get(name, "0")) for name in names], true


def test_workers_have_a_planned_place_before_init_and_their_own_one_after_it() -> None:
    settings = ElasticRayExecutor.create_settings(min_num_proc=2, max_num_proc=2, timeout_s=60)
    executor = ElasticRayExecutor(settings)
    executor.start()
    places = executor.run(places_in_the_environment)
    assert len(places) == 2
    for rank, (before, after, true) in enumerate(places):
        assert after == true
        assert before == [*true[:6], 1], "nothing has changed since the start"
        assert before[:2] == [rank, 2]


def test_a_frozen_worker_is_replaced(tmp_path: Path) -> None:
    """Check that a frozen worker is replaced, and that the survivor and the new worker publish metrics."""
    end = tmp_path / "end"
    frozen: list[psutil.Process] = []

    def freeze(world: dict[int, dict[str, Any]]) -> None:
        # The actor that carries these reports is on the head node, because nodes of workers may be removed.
        queues = [actor for actor in ray._private.state.actors().values() if actor["ActorClassName"] == "_QueueActor"]
        assert {queue["Address"]["NodeID"] for queue in queues if queue["State"] == "ALIVE"} == {head_node()}
        frozen.append(psutil.Process(world[1]["pid"]))
        frozen[0].suspend()

    def finish(world: dict[int, dict[str, Any]]) -> None:
        least = {"ray_horovod_size": 2, "ray_horovod_collectives_total": 1}
        await_metrics(ray.get_runtime_context().get_job_id(), range(2), least)
        end.touch()

    director = Director((2, freeze), (2, finish))
    executor = ElasticRayExecutor(ElasticRayExecutor.create_settings(min_num_proc=2, max_num_proc=2, timeout_s=60))
    executor.start()
    results = executor.run(lambda: train(str(end)), callbacks=[director])
    worlds = [worlds for _, _, _, worlds in results]
    assert len(worlds[0]) > len(worlds[1]), worlds  # rank 0 continued in its process, and rank 1 is a new one
    assert psutil.wait_procs(frozen, timeout=30)[1] == []


def resume(folder: str, dies_once: str) -> tuple[int, float]:
    """Train three more steps.

    If the file does not exist yet, rank 0 is killed between hvd.init() and the first sync.
    """
    import numpy as np

    from horovod.common.checkpoint import checkpoint

    hvd.init()
    state = hvd.elastic.NumpyState(weights=np.zeros(2), step=0)
    checkpoint(state, folder)
    if hvd.rank() == 0 and not os.path.exists(dies_once):
        Path(dies_once).touch()
        os.kill(os.getpid(), signal.SIGKILL)

    def loop(state: Any) -> None:
        while state.step < 8:
            state.weights = state.weights + hvd.allreduce(np.ones(2), name="gradient")
            state.step += 1
            state.commit()

    hvd.elastic.run(loop)(state)
    return state.step, float(state.weights[0])


def test_fault_36_rank_0_is_lost_before_the_first_sync_and_training_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    begun = CommitId("00112233445566aa", 5)
    values = {"weights": np.full(2, 5.0), "step": 5}
    checkpoint_file.write(path_of(folder, 1, begun.lineage), {"values": values}, begun)
    executor = ElasticRayExecutor(ElasticRayExecutor.create_settings(min_num_proc=2, max_num_proc=2, timeout_s=60))
    executor.start()
    results = executor.run(lambda: resume(str(folder), str(tmp_path / "died")))
    assert (tmp_path / "died").exists()
    assert set(results) == {(8, 8.0)}
    newest = list_files(folder)[0]
    assert checkpoint_file.describe(newest).commit == CommitId(begun.lineage, 8)


def test_a_broken_checkpoint_ends_the_job_and_is_named(tmp_path: Path) -> None:
    broken = path_of(tmp_path, 1, "00112233445566aa")
    broken.write_bytes(b"")
    (tmp_path / "died").touch()
    executor = ElasticRayExecutor(ElasticRayExecutor.create_settings(min_num_proc=2, max_num_proc=2, timeout_s=60))
    executor.start()
    with pytest.raises(
        RuntimeError, match=rf"the elastic job is ended: rank 0 cannot load .*{broken.name}: it is empty"
    ):
        executor.run(lambda: resume(str(tmp_path), str(tmp_path / "died")))
    assert list_files(tmp_path) == [broken]


class OneSlot(RayHostDiscovery):
    """Discovery of a user, which is pickled with its class."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        return dict.fromkeys(list(super().find_available_hosts_and_slots())[:1], 1)


def test_a_job_that_cannot_go_on_says_why() -> None:
    def fail() -> None:
        raise ZeroDivisionError("in every worker")

    settings = ElasticRayExecutor.create_settings(min_num_proc=1, timeout_s=60, discovery=OneSlot())
    executor = RayExecutor(settings, min_workers=1, override_discovery=False)
    executor.start()
    with pytest.raises(RuntimeError, match="(?s)the elastic job is ended: .*ZeroDivisionError: in every worker"):
        executor.run(fail)


class BrokenDiscovery(RayHostDiscovery):
    """Discovery of a user that never finds a host."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        raise self.error


@pytest.mark.parametrize(
    ("error", "limit_s", "text"),
    [
        (OSError("no list of hosts"), 2, r"after 2 s \(--elastic-timeout\) 0 workers are ready, 1 are needed"),
        (SystemExit("no more"), 60, "the coordinator's thread horovod-watch failed with SystemExit: no more"),
    ],
)
def test_a_job_whose_discovery_never_works_ends(error: BaseException, limit_s: int, text: str) -> None:
    settings = ElasticRayExecutor.create_settings(min_num_proc=1, timeout_s=60, discovery=BrokenDiscovery(error))
    executor = RayExecutor(settings, min_workers=1, override_discovery=False, elastic_timeout=limit_s)
    executor.start()
    with pytest.raises(RuntimeError, match=text):
        executor.run(lambda: None)


def test_what_is_said_of_a_discovery_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    coordinator = ElasticCoordinator(None, Limits(1, 1, 1), OneSlot())
    for text in ("no answer", "", "no answer", "no answer", "another error"):
        coordinator._discovery = BrokenDiscovery(OSError(text)) if text else OneSlot()
        coordinator._find_hosts()
    assert capsys.readouterr().out.splitlines() == [
        "hosts could not be discovered, discovery is tried again every second: no answer",
        "hosts could not be discovered, the last list is kept: no answer",
        "hosts could not be discovered, the last list is kept: another error",
    ]


def test_nodes_as_hosts() -> None:
    """Check nodes with GPUs only, because Ray may still list the killed node of another test, which had none."""
    nodes = {node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")}
    assert RayHostDiscovery(True, 1, 1).find_available_hosts_and_slots() == dict.fromkeys(nodes, 2)
    assert RayHostDiscovery(True, 1, 2).find_available_hosts_and_slots() == dict.fromkeys(nodes, 1)
    assert RayHostDiscovery(True, 2, 0.5).find_available_hosts_and_slots() == dict.fromkeys(nodes, 1)
    assert RayHostDiscovery(cpus_per_slot=3).find_available_hosts_and_slots() == {}
    assert RayHostDiscovery().find_available_hosts_and_slots().items() >= dict.fromkeys(nodes, 2).items()
    changing = TestDiscovery(1, 2, 0.0, use_gpu=True, verbose=False)
    seen = [set(changing.find_available_hosts_and_slots()) for _ in range(20)]
    assert {len(hosts) for hosts in seen} == {1, 2}
    assert all(hosts <= nodes for hosts in seen)
