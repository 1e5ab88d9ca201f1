# SPDX-License-Identifier: Apache-2.0
"""Actors as workers of an elastic job: a placer for the driver, which decides which workers start or end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from horovod.common.joining.elastic_place import worker_variables
from horovod.launcher.elastic.places import Place
from horovod.launcher.elastic.vocabulary import Ended, Event, Slot
from horovod.ray.collecting import in_words
from horovod.ray.discovery import node_called
from horovod.ray.worker import BaseHorovodWorker

_NOT_STARTED = 127


@dataclass(frozen=True)
class Task:
    """Work of every worker. `function` is a list with a reference to the function, which each worker fetches itself."""

    function: Sequence[Any]
    variables: Mapping[str, str]  # contain the secret, so they are only passed as the argument of a call
    resources: Mapping[str, float]
    extra_env: Mapping[str, Any] = field(default_factory=dict)
    executable: tuple[type | None, Sequence[Any] | None, Mapping[str, Any] | None] = (None, None, None)
    queue: Any = None
    start_limit_s: float = 30.0


class ElasticWorker(BaseHorovodWorker):
    """Actor that becomes a worker and does all its work in one call, which fails if any part of it fails."""

    def process(self) -> tuple[int, float]:
        """Return the process's id and start time, because ids are reused."""
        return os.getpid(), psutil.Process().create_time()

    def work(self, variables: Mapping[str, str], task: Task) -> Any:
        self.become(variables)
        self.update_env_vars(task.extra_env)
        self.set_queue(task.queue)
        self.start_executable(*task.executable)
        return self.execute(ray.get(task.function[0]))


def _kill(pid: int, started: float) -> None:
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        if process.create_time() == started:
            process.kill()


@dataclass
class _Placed:
    actor: Any
    alive: Any  # reference to its process, ready once the actor lives
    done: Any  # reference to the result of its work
    slot: Slot
    node: str
    deadline: float | None
    process: tuple[int, float] | None = None  # id and start time


class RayPlacer:
    """WorkerPlacer for actors.

    The driver calls `start` and `signal`; `watch` reports to the driver how workers ended.
    """

    def __init__(self, task: Task, tell: Callable[[Event], None]) -> None:
        self._task = task
        self._tell = tell
        self._placed: dict[int, _Placed] = {}
        self.results: dict[int, Any] = {}  # by birth id
        self.failures: dict[int, str] = {}  # tracebacks, by birth id

    def start(self, birth: int, slot: Slot, planned: Place) -> None:
        node = node_called(slot[0])
        if node is None:
            self._tell(Ended(birth, _NOT_STARTED, f"Ray has no living node {slot[0]}"))
            return
        where = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
        resources = self._task.resources
        actor = (
            ray.remote(ElasticWorker)
            .options(
                num_cpus=resources.get("CPU", 0),
                num_gpus=resources.get("GPU", 0),
                max_restarts=0,
                scheduling_strategy=where,
            )
            .remote()
        )
        variables = {
            **self._task.variables,
            **self._devices(node),
            **worker_variables(birth, slot[0], planned),
        }
        alive, done = actor.process.remote(), actor.work.remote(variables, self._task)
        deadline = time.monotonic() + self._task.start_limit_s
        self._placed[birth] = _Placed(actor, alive, done, slot, node["NodeID"], deadline)

    def _devices(self, node: Mapping[str, Any]) -> dict[str, str]:
        """Return the variable that lists all GPUs of the node.

        A worker chooses its GPU by its local rank, which may change, so it has to see all of them.
        """
        if self._task.resources.get("GPU", 0) < 1:
            return {}
        return {"CUDA_VISIBLE_DEVICES": ",".join(str(number) for number in range(int(node["Resources"]["GPU"])))}

    def signal(self, birth: int, number: int) -> None:
        """Kill the actor, whatever the signal, because that is all Ray offers. Its end is reported as an event."""
        placed = self._placed.get(birth)
        if placed is None:
            return
        ray.kill(placed.actor, no_restart=True)
        if placed.process is not None:  # Ray only asks the process to end, which has no effect on a frozen process
            where = NodeAffinitySchedulingStrategy(node_id=placed.node, soft=False)
            ray.remote(_kill).options(num_cpus=0, max_retries=0, scheduling_strategy=where).remote(*placed.process)

    def watch(self, limit_s: float) -> None:
        """Wait for at most `limit_s` seconds and report what happened. Call from one thread only."""
        placed = dict(self._placed)
        waited_for = {one.done: birth for birth, one in placed.items()}
        waited_for |= {one.alive: birth for birth, one in placed.items() if one.deadline is not None}
        if not waited_for:
            time.sleep(limit_s)
            return
        done, _ = ray.wait(list(waited_for), num_returns=1, timeout=limit_s)
        for birth in {waited_for[reference] for reference in done}:
            self._look_at(birth, placed[birth])
        now = time.monotonic()
        for birth, one in placed.items():
            if birth in self._placed and one.deadline is not None and now >= one.deadline:
                self._end(birth, _NOT_STARTED, self._too_late(one))

    def _look_at(self, birth: int, placed: _Placed) -> None:
        try:
            if placed.deadline is not None and ray.wait([placed.alive], timeout=0)[0]:
                placed.deadline = None
                placed.process = ray.get(placed.alive, timeout=0)
            value = ray.get(placed.done, timeout=0)
        except GetTimeoutError:
            return  # it is alive and at work
        except RayActorError as error:
            self._end(birth, 1, in_words(error))
        except Exception as error:
            self.failures[birth] = str(error)
            self._end(birth, 1, in_words(error))
        else:
            self.results[birth] = value
            self._end(birth, 0, "done")

    def _end(self, birth: int, code: int, how: str) -> None:
        placed = self._placed.pop(birth)
        with suppress(RayError):  # kill the actor to free its slot; most actors are dead already
            ray.kill(placed.actor, no_restart=True)
        self._tell(Ended(birth, code, how))

    def _too_late(self, placed: _Placed) -> str:
        return (
            f"node {placed.slot[0][:12]} could not start it within {self._task.start_limit_s:g} s (timeout_s): "
            "do other jobs hold its CPUs or GPUs?"
        )

    def end_all(self) -> None:
        for placed in list(self._placed.values()):
            with suppress(RayError):
                ray.kill(placed.actor, no_restart=True)
        self._placed.clear()
