# SPDX-License-Identifier: Apache-2.0
"""RayExecutor with persistent workers: three ranks on two nodes, used by one test after another."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from testkit.ray_metrics import await_metrics

import horovod.numpy as hvd
from horovod.common.exceptions import HorovodInternalError
from horovod.ray import RayExecutor, ray_logger

pytestmark = pytest.mark.timeout(120)

BYTES = 1 << 20  # more than any other test sends


class Counter:
    def __init__(self, first: int, step: int = 1) -> None:
        self.value, self.step = first, step
        self.rank_at_start = os.environ["HOROVOD_RANK"]


@pytest.fixture(scope="module")
def executor(cluster: Any) -> Iterator[RayExecutor]:
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=60), num_workers=3)
    executor.start(
        executable_cls=Counter, executable_args=[5], executable_kwargs={"step": 2}, extra_env_vars={"EXTRA": 7}
    )
    yield executor
    executor.shutdown()


def numbers() -> tuple[int, ...]:
    hvd.init()
    return hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()


def test_ranks_are_grouped_by_node(executor: RayExecutor) -> None:
    def where() -> tuple[tuple[int, ...], str, str]:
        return numbers(), ray.get_runtime_context().get_node_id(), os.environ["HOROVOD_HOSTNAME"]

    found = executor.run(where)
    assert [six for six, _, _ in found] == [(0, 3, 0, 2, 0, 2), (1, 3, 1, 2, 0, 1), (2, 3, 0, 1, 1, 2)]
    nodes = [node for _, node, _ in found]
    assert nodes[0] == nodes[1] != nodes[2]
    assert [host for _, _, host in found] == nodes


def test_workers_know_the_name_of_their_machine(executor: RayExecutor) -> None:
    workers = executor.adapter.workers
    assert ray.get([worker.hostname.remote() for worker in workers], timeout=60) == [socket.gethostname()] * 3
    addresses = [address for _, address, _, _ in ray.get([one.describe.remote() for one in workers], timeout=60)]
    assert addresses == [ray.util.get_node_ip_address()] * 3


def test_ranks_of_a_node_share_memory(executor: RayExecutor) -> None:
    def segments() -> set[str]:
        """Return the inodes of Horovod's shared memory that this process has mapped."""
        import numpy as np

        hvd.init()
        hvd.allreduce(np.ones(1))
        lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "khorovod" in line]
        return {inode for _, _, _, _, inode, *name in lines if not name[0].endswith(".so")}

    zero, one, two = executor.run(segments)
    assert zero & one
    assert not two & (zero | one)


def test_the_coordinator_is_on_the_node_of_rank_0(executor: RayExecutor) -> None:
    living = [actor for actor in ray._private.state.actors().values() if actor["State"] == "ALIVE"]
    nodes = [actor["Address"]["NodeID"] for actor in living if actor["ActorClassName"] == "_WorldCoordinator"]
    assert nodes == executor.run(lambda: ray.get_runtime_context().get_node_id())[:1]


def test_collectives_and_arguments(executor: RayExecutor) -> None:
    def total(factor: int, *, plus: int) -> list[float]:
        import numpy as np

        hvd.init()
        return list(hvd.allreduce(np.full(2, float(hvd.rank() * factor + plus)), op=hvd.Sum))

    assert executor.run(total, args=[10], kwargs={"plus": 1}) == [[33.0, 33.0]] * 3
    references = executor.run_remote(total, args=[1], kwargs={"plus": 0})
    assert len(references) == 3
    assert ray.get(references) == [[3.0, 3.0]] * 3


def test_metrics_reach_the_ports_of_the_nodes(executor: RayExecutor) -> None:
    def reduce() -> None:
        import numpy as np

        hvd.init()
        hvd.allreduce(np.zeros(BYTES, np.uint8), op=hvd.Max)

    executor.run(reduce)
    least = {"ray_horovod_size": 3, "ray_horovod_collectives_total": 1, "ray_horovod_bytes_total": BYTES}
    await_metrics(ray.get_runtime_context().get_job_id(), range(3), least)


def test_executables_live_in_the_workers(executor: RayExecutor) -> None:
    def add(counter: Counter) -> tuple[int, str, str]:
        counter.value += counter.step
        return counter.value, counter.rank_at_start, os.environ["EXTRA"]

    assert executor.execute(add) == [(7, "0", "7"), (7, "1", "7"), (7, "2", "7")]
    assert executor.execute_single(add)[0] == 9
    assert [value for value, _, _ in executor.execute(add)] == [11, 9, 9]


def test_what_workers_log_reaches_the_callbacks(executor: RayExecutor) -> None:
    def log() -> None:
        hvd.init()
        for step in range(3):
            ray_logger.log({"rank": hvd.rank(), "step": step})

    heard: list[dict[str, int]] = []
    assert executor.run(log, callbacks=[heard.append]) == [None] * 3
    assert sorted((info["rank"], info["step"]) for info in heard) == [(r, s) for r in range(3) for s in range(3)]
    executor.run(log)  # without callbacks
    assert len(heard) == 9


def test_what_fails_is_named_and_nobody_hangs(executor: RayExecutor) -> None:
    """Check that rank 1's error is reported while the others wait in a collective, and that the workers stay usable."""

    def train() -> None:
        hvd.init()
        if hvd.rank() == 1:
            raise KeyError("lost my key")
        hvd.barrier()

    with pytest.raises(KeyError, match="lost my key") as caught:
        executor.run(train)
    assert "rank 1 on node " in "\n".join(caught.value.__notes__)
    assert [six[0] for six in executor.run(numbers)] == [0, 1, 2]


def test_a_failure_before_init_ends_the_wait_of_the_others(executor: RayExecutor) -> None:
    def train() -> None:
        hvd.shutdown()
        if os.environ["HOROVOD_RANK"] == "2":
            raise ValueError("never came")
        hvd.init()

    begun = time.monotonic()
    with pytest.raises(ValueError, match="never came"):
        executor.run(train)
    assert time.monotonic() - begun < 30  # far less than the 60 s that ranks have for the rendezvous
    assert [six[0] for six in executor.run(numbers)] == [0, 1, 2]


def test_sys_exit_is_an_error_of_the_function(executor: RayExecutor) -> None:
    def leave(code: int) -> None:
        raise SystemExit(code)

    with pytest.raises(RuntimeError, match=r"called sys.exit\(3\)"):
        executor.run(leave, args=[3])
    assert executor.run(leave, args=[0]) == [None] * 3


def test_nothing_that_ray_shows_holds_the_secret(executor: RayExecutor) -> None:
    secret = executor.execute_single(lambda _: os.environ["_HOROVOD_SECRET_KEY"])
    shown = repr(ray._private.state.actors())
    assert "BaseHorovodWorker" in shown
    assert secret not in shown
    assert secret not in repr(executor.settings)


def test_a_worker_that_dies_is_named_by_rank_and_node(executor: RayExecutor) -> None:
    """Check that survivors and later calls raise. No later test can use these workers."""

    def train() -> None:
        hvd.init()
        if hvd.rank() == 2:
            os.kill(os.getpid(), 9)
        hvd.barrier()

    node = executor.run(lambda: ray.get_runtime_context().get_node_id())[2]
    begun = time.monotonic()
    with pytest.raises(HorovodInternalError, match=f"^rank 2 on node {node[:12]} .* its actor died"):
        executor.run(train)
    assert time.monotonic() - begun < 30
    with pytest.raises(HorovodInternalError, match=r"^rank 2 on node .* Call shutdown\(\) and start\(\)"):
        executor.run(numbers)


def test_hosts_and_devices(executor: RayExecutor) -> None:
    """Check that an executor can use resources that an earlier one has freed.

    The workers use all cores, so that none is left for the coordinator. Each has a GPU, and the workers of a node see
    both.
    """
    executor.shutdown()
    settings = RayExecutor.create_settings(timeout_s=60, placement_group_timeout_s=30)
    executor = RayExecutor(settings, num_hosts=2, num_workers_per_host=2, use_gpu=True, gpus_per_worker=1)
    executor.start()
    try:
        found = executor.run(lambda: (numbers(), os.environ["CUDA_VISIBLE_DEVICES"], ray.get_gpu_ids()))
    finally:
        executor.shutdown()
    assert [six for six, _, _ in found] == [(rank, 4, rank % 2, 2, rank // 2, 2) for rank in range(4)]
    for node in (found[:2], found[2:]):
        own = [str(gpus[0]) for _, _, gpus in node]
        assert sorted(own) == ["0", "1"]
        assert [visible.split(",") for _, visible, _ in node] == [own, own]


def in_and_outside_the_current_group() -> tuple[list[Any], str, bool]:
    """Start executors from a task in a placement group: two workers in it, a third without room, and one outside it."""

    def started(workers: int, **others: Any) -> RayExecutor:
        settings = RayExecutor.create_settings(timeout_s=60, placement_group_timeout_s=30)
        executor = RayExecutor(settings, num_workers=workers, cpus_per_worker=0.25, **others)
        executor.start()
        return executor

    def group() -> str:
        return ray.util.get_current_placement_group().id.hex()

    halves = {"use_gpu": True, "gpus_per_worker": 0.5}
    executor = started(2, **halves)
    inside = executor.run(lambda: (numbers()[:2], group(), os.environ["CUDA_VISIBLE_DEVICES"]))
    executor.shutdown()
    assert {other for _, other, _ in inside} == {group()}
    with pytest.raises(ValueError, match="use_current_placement_group=False") as refused:
        started(3, **halves)
    executor = started(1, use_current_placement_group=False)
    (outside,) = executor.run(group)
    executor.shutdown()
    return [(two, gpus) for two, _, gpus in inside], str(refused.value), outside != group()


def test_the_current_placement_group_and_fractions_of_a_gpu() -> None:
    group = ray.util.placement_group([{"CPU": 1, "GPU": 1}])
    where = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    task = ray.remote(num_cpus=0)(in_and_outside_the_current_group).options(scheduling_strategy=where)
    try:
        inside, refused, is_elsewhere = ray.get(task.remote(), timeout=100)
    finally:
        ray.util.remove_placement_group(group)
    (first, gpu), (second, same) = inside
    assert (first, second) == ((0, 2), (1, 2))
    assert gpu == same
    assert gpu in ("0", "1")
    assert refused.startswith(
        "3 workers with CPU 0.25 and GPU 0.5 each were asked for, but the current placement group "
    )
    assert is_elsewhere
