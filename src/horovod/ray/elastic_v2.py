# SPDX-License-Identifier: Apache-2.0
"""RayExecutor with min_workers: workers come and go, and the remaining workers recover in their processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError as GetTimeoutError
from ray.exceptions import RayActorError, RayError

from horovod.common.exceptions import HorovodInternalError
from horovod.common.log import logger as logger
from horovod.common.settings_table import MOST_RANKS
from horovod.launcher.compat.gloo_run import create_run_env_vars as create_run_env_vars
from horovod.launcher.compat.gloo_run import create_slot_env_vars as create_slot_env_vars
from horovod.launcher.elastic.discovery import HostDiscovery as HostDiscovery
from horovod.launcher.elastic.driver import ElasticDriver as ElasticDriver
from horovod.launcher.elastic.rendezvous import RendezvousServer as RendezvousServer
from horovod.launcher.elastic.rendezvous import create_rendezvous_handler as create_rendezvous_handler
from horovod.launcher.elastic.vocabulary import Limits
from horovod.ray.adapter import Adapter as Adapter
from horovod.ray.adapter import BaseParams as BaseParams
from horovod.ray.callbacks import Callbacks
from horovod.ray.collecting import in_words
from horovod.ray.discovery import ChangingDiscovery, NodeDiscovery, head_node, slot_resources
from horovod.ray.elastic_coordinator import ElasticCoordinator, ElasticResult
from horovod.ray.head import HeadWatch, connect
from horovod.ray.placing import Task
from horovod.ray.utils import detect_nics as detect_nics
from horovod.ray.worker import BaseHorovodWorker as BaseHorovodWorker
from horovod.ray.world import coordinator_on

_LOOK_S = 0.2


class RayHostDiscovery(NodeDiscovery):
    """Discovery of living nodes, with the number of workers that each has room for."""

    def __init__(self, use_gpu: bool = False, cpus_per_worker: float = 1, gpus_per_worker: float | None = 1) -> None:
        super().__init__(use_gpu, cpus_per_worker, gpus_per_worker)


class TestDiscovery(ChangingDiscovery, RayHostDiscovery):
    """Discovery for tests: it shows a part of the living nodes, which changes at intervals."""

    __test__ = False  # for pytest, which would collect it because of its name

    def __init__(
        self,
        min_hosts: int,
        max_hosts: int,
        change_frequency_s: float,
        use_gpu: bool = False,
        cpus_per_worker: float = 1,
        gpus_per_worker: float | None = 1,
        verbose: bool = True,
        _graceful: bool = True,
    ) -> None:
        ChangingDiscovery.__init__(
            self,
            min_hosts,
            max_hosts,
            change_frequency_s,
            use_gpu,
            cpus_per_worker,
            gpus_per_worker,
            verbose,
            _graceful,
        )


@dataclass
class ElasticParams(BaseParams):
    """Parameters of a job whose workers come and go."""

    min_workers: int = 1
    max_workers: int | None = None
    reset_limit: int | None = None
    cooldown_range: Sequence[int] | None = None  # the shortest and the longest rest, in seconds
    elastic_timeout: int = 600
    override_discovery: bool = True

    @property
    def elastic(self) -> bool:
        return True

    @property
    def adapter(self) -> type[Adapter]:
        return ElasticAdapter


@dataclass(eq=False, repr=False)
class ElasticAdapter(Adapter):
    """Adapter for elastic jobs. With `override_discovery=False` it uses the `discovery` of the settings."""

    settings: Any
    min_workers: int
    max_workers: int | None = None
    use_gpu: bool = False
    cpus_per_worker: int = 1
    gpus_per_worker: int | None = None
    override_discovery: bool = True
    reset_limit: int | None = None
    cooldown_range: Sequence[int] | None = None
    elastic_timeout: int = 600

    def __post_init__(self) -> None:
        self.limits = limits_of(
            self.min_workers, self.max_workers, self.elastic_timeout, self.reset_limit, self.cooldown_range
        )
        each = self.use_gpu, self.cpus_per_worker, self.gpus_per_worker
        self.resources = slot_resources(*each)
        own = getattr(self.settings, "discovery", None)
        self.discovery: HostDiscovery = RayHostDiscovery(*each) if self.override_discovery or own is None else own
        self._head: HeadWatch | None = None
        self._coordinator: Any = None
        self._started_with: dict[str, Any] = {}  # fields of each task that start() determines

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Connect to the cluster. run() and execute() start new workers for each call."""
        connect()
        self._head = HeadWatch()
        self._head.require()
        self._started_with = {
            "executable": (executable_cls, executable_args, executable_kwargs),
            "extra_env": dict(extra_env_vars or {}),
        }

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[..., Any]] | None = None,
    ) -> list[Any]:
        positional, named = tuple(args or ()), dict(kwargs or {})
        return self.execute(lambda _: fn(*positional, **named), callbacks)

    def execute(self, fn: Callable[[Any], Any], callbacks: Sequence[Callable[..., Any]] | None = None) -> list[Any]:
        """Return the results by rank in the last generation. Raise RuntimeError if the job could not go on."""
        if self._head is None:
            raise RuntimeError("this executor is not started: call start() first")
        self._head.require()
        self._coordinator = coordinator_on(head_node(), ElasticCoordinator, self.settings, self.limits, self.discovery)
        try:
            with Callbacks(callbacks) as relay:
                task = Task(
                    function=[ray.put(fn)],
                    variables={},
                    resources=self.resources,
                    **self._started_with,
                    queue=relay.queue,
                    start_limit_s=float(getattr(self.settings, "timeout_s", None) or 30),
                )
                result = self._await(self._coordinator.run.remote(task), relay)
        finally:
            self.shutdown()
        if result.text:
            raise RuntimeError(result.text)
        return list(result.values)

    def _await(self, reference: Any, relay: Callbacks) -> ElasticResult:
        assert self._head is not None
        while not ray.wait([reference], timeout=_LOOK_S)[0]:
            relay.serve()
            self._head.look()
        relay.serve()
        try:
            result: ElasticResult = ray.get(reference)
        except RayActorError as error:
            raise HorovodInternalError(f"the coordinator of the elastic job is lost: {in_words(error)}") from error
        return result

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[..., Any]] | None = None,
    ) -> list[Any]:
        raise NotImplementedError("run_remote() is for workers that stay: with min_workers use run()")

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        raise NotImplementedError("execute_single() is for workers that stay: with min_workers use execute()")

    def shutdown(self) -> None:
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is not None:
            with suppress(RayError, ConnectionError):
                ray.kill(coordinator, no_restart=True)


def limits_of(
    few: int, many: int | None, timeout_s: float, reset_limit: int | None, cooldown: Sequence[float] | None
) -> Limits:
    """Return the limits of an elastic job. Raise ValueError if they contradict each other."""
    most = many if many is not None else MOST_RANKS
    if not 1 <= few <= most:
        raise ValueError(
            f"the least number of workers must be at least 1 and not above the largest: min {few}, max {many}"
        )
    return Limits(
        num_proc=few,
        min_num_proc=few,
        max_num_proc=most,
        timeout_s=float(timeout_s),
        reset_limit=reset_limit,
        cooldown=(float(cooldown[0]), float(cooldown[1])) if cooldown else None,
        fixed_hosts=False,
    )
