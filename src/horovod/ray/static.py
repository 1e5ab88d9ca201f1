# SPDX-License-Identifier: Apache-2.0
"""Executor whose workers are started once. Ranks are grouped by node, and the first failure is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from horovod.common.exceptions import HorovodInternalError
from horovod.ray.adapter import Adapter
from horovod.ray.callbacks import Callbacks
from horovod.ray.collecting import Outcome, collect, in_words
from horovod.ray.head import HeadWatch, connect
from horovod.ray.strategy import BaseStrategy, ColocatedStrategy, PGStrategy
from horovod.ray.world import RayWorld, answer_of

_DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class _Worker:
    actor: Any
    node: str
    address: str
    hostname: str
    gpus: tuple[int, ...]

    def __str__(self) -> str:
        return f"node {self.node[:12]} ({self.hostname}, {self.address})"


@dataclass(eq=False, repr=False)
class StaticAdapter(Adapter):
    """Adapter for `num_workers` on as few nodes as possible, or `num_workers_per_host` on each of `num_hosts` nodes."""

    settings: Any
    num_workers: int | None = None
    num_hosts: int | None = None
    num_workers_per_host: int = 1
    cpus_per_worker: int = 1
    use_gpu: bool = False
    gpus_per_worker: int | None = None
    use_current_placement_group: bool = True

    def __post_init__(self) -> None:
        if (self.num_workers is None) == (self.num_hosts is None):
            raise ValueError(
                f"pass either num_workers or num_hosts (with num_workers_per_host), not both and not neither: "
                f"num_workers={self.num_workers}, num_hosts={self.num_hosts}"
            )
        for name in ("num_workers", "num_hosts", "num_workers_per_host"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise ValueError(f"{name} must be at least 1, not {count}")
        self.strategy: BaseStrategy | None = None
        self._workers: list[_Worker] = []  # by rank
        self._world: RayWorld | None = None
        self._broken: str | None = None

    @property
    def workers(self) -> list[Any]:
        """Return the actors, by rank."""
        return [worker.actor for worker in self._workers]

    # Start and end

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        if self._workers:
            raise RuntimeError("this executor is started already: call shutdown() first")
        connect()
        self._head = HeadWatch()
        self._head.require()
        try:
            self._start_workers(dict(extra_env_vars or {}))
            made = [
                worker.start_executable.remote(executable_cls, executable_args, executable_kwargs)
                for worker in self.workers
            ]
            self._finish(collect(dict(enumerate(made)), on_failure=self._on_failure, meanwhile=[self._head.look]))
        except BaseException:
            self.shutdown()
            raise

    def _start_workers(self, extra_env_vars: dict[str, Any]) -> None:
        self.strategy = self._make_strategy()
        actors = self.strategy.create_workers()
        limit_s = self.settings.placement_group_timeout_s
        told = [answer_of(actor.describe.remote(), limit_s, f"worker {i}") for i, actor in enumerate(actors)]
        self._workers = grouped(
            [
                _Worker(actor, node, address, hostname, tuple(gpus))
                for actor, (node, address, hostname, gpus) in zip(actors, told, strict=True)
            ]
        )
        nodes = [worker.node for worker in self._workers]
        self._world = RayWorld(nodes, self.settings, [worker.hostname for worker in self._workers])
        self._broken = None
        devices = shared_devices(self._workers) if self.use_gpu else [{} for _ in self._workers]
        for calls in (
            [
                worker.become.remote(variables)
                for worker, variables in zip(self.workers, self._world.environments, strict=True)
            ],
            [
                worker.update_env_vars.remote({**visible, **extra_env_vars})
                for worker, visible in zip(self.workers, devices, strict=True)
            ],
        ):
            answer_of(calls, self.settings.timeout_s, "one of the workers")

    def _make_strategy(self) -> BaseStrategy:
        common: dict[str, Any] = {
            "settings": self.settings,
            "use_gpu": self.use_gpu,
            "cpus_per_worker": self.cpus_per_worker,
            "gpus_per_worker": self.gpus_per_worker,
        }
        if self.num_workers is None:
            assert self.num_hosts is not None
            return ColocatedStrategy(num_hosts=self.num_hosts, num_workers_per_host=self.num_workers_per_host, **common)
        fresh = not self.use_current_placement_group
        return PGStrategy(num_workers=self.num_workers, force_create_placement_group=fresh, **common)

    def shutdown(self) -> None:
        strategy, self.strategy = self.strategy, None
        world, self._world = self._world, None
        self._workers = []
        with suppress(RayError, ConnectionError):
            if strategy is not None:
                strategy.shutdown()
            if world is not None:
                world.close()

    # Work

    def execute(self, fn: Callable[[Any], Any], callbacks: Sequence[Callable[..., Any]] | None = None) -> list[Any]:
        self._require_whole()
        with Callbacks(callbacks) as relay:
            if relay.queue is not None:
                ray.get([worker.set_queue.remote(relay.queue) for worker in self.workers])
            meanwhile = [relay.serve, self._head.look]
            outcome = collect(dict(enumerate(self._call(fn))), on_failure=self._on_failure, meanwhile=meanwhile)
            if relay.queue is not None:
                for worker in self.workers:
                    worker.set_queue.remote(None)
        self._finish(outcome)
        return [outcome.values[rank] for rank in range(len(self._workers))]

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[..., Any]] | None = None,
    ) -> list[Any]:
        return self.execute(_with_arguments(fn, args, kwargs), callbacks)

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[..., Any]] | None = None,
    ) -> list[Any]:
        if callbacks:
            raise ValueError(
                "run_remote() takes no callbacks, because it returns before the workers have finished; use run()"
            )
        self._require_whole()
        return self._call(_with_arguments(fn, args, kwargs))

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        self._require_whole()
        outcome = collect(
            {0: self.workers[0].execute.remote(fn)}, on_failure=self._on_failure, meanwhile=[self._head.look]
        )
        self._finish(outcome)
        return outcome.values[0]

    def _call(self, fn: Callable[[Any], Any]) -> list[Any]:
        shipped = ray.put(fn)  # shipped once instead of once per worker
        return [worker.execute.remote(shipped) for worker in self.workers]

    # Failures

    def _require_whole(self) -> None:
        if not self._workers:
            raise RuntimeError("this executor has no workers: call start() first")
        if self._broken is None:
            assert self._world is not None
            self._head.require()
            self._broken = self._world.trouble()
        if self._broken is not None:
            raise HorovodInternalError(f"{self._broken}. Call shutdown() and start() to begin anew")

    def _on_failure(self, rank: int, error: BaseException) -> None:
        """Release the ranks that may wait for this rank in hvd.init()."""
        if self._world is not None:
            self._world.lose(rank, f"{self._named(rank)} has failed: {in_words(error)}")

    def _named(self, rank: int) -> str:
        return f"rank {rank} on {self._workers[rank]}"

    def _finish(self, outcome: Outcome) -> None:
        """Raise the first failure, if any, and prepare the workers for another run if possible."""
        if not outcome.failures:
            return
        rank = outcome.cause()
        error = outcome.failures[rank]
        text = f"{self._named(rank)} has failed: {in_words(error)}"
        if outcome.died:
            self._broken = text
            raise HorovodInternalError(text, lost_rank=rank) from error
        if outcome.silent:
            frozen = outcome.silent[0]
            self._broken = f"{self._named(frozen)} does not answer any more: {text}"
            raise HorovodInternalError(self._broken, lost_rank=frozen) from error
        if outcome.running:
            self._broken = f"{text}, and other ranks still run"
        else:
            self._make_usable_again(outcome, text)
        if hasattr(error, "add_note"):
            error.add_note(self._broken or text)
        raise error

    def _make_usable_again(self, outcome: Outcome, text: str) -> None:
        """Let all ranks leave their world, because it contains the rank that failed.

        Ranks that returned are still in that world. Afterwards hvd.init() connects all ranks again.
        """
        assert self._world is not None
        trouble = self._world.trouble()
        if trouble is not None:
            self._broken = f"{text}; {trouble}"
            return
        try:
            ray.get([worker.leave.remote() for worker in self.workers], timeout=self.settings.timeout_s)
            for rank in outcome.failures:
                self._world.find(rank)
        except RayError as error:
            self._broken = f"{text}; afterwards the workers could not be used again: {in_words(error)}"


def grouped(workers: Sequence[_Worker]) -> list[_Worker]:
    """Return the workers grouped by node, with the nodes in the order of their first workers."""
    order = list(dict.fromkeys(worker.node for worker in workers))
    return sorted(workers, key=lambda worker: order.index(worker.node))


def shared_devices(workers: Sequence[_Worker]) -> list[dict[str, str]]:
    """Return for each worker the variable that lists all GPUs of its node's workers.

    So a rank's own GPU is device number `local_rank`. Workers that share a GPU keep what Ray assigned, because a device
    cannot be listed twice.
    """
    by_node: dict[str, list[int]] = {}
    for worker in workers:
        by_node.setdefault(worker.node, []).extend(worker.gpus)
    return [
        {_DEVICES: ",".join(map(str, by_node[worker.node]))}
        if len(set(by_node[worker.node])) == len(by_node[worker.node])
        else {}
        for worker in workers
    ]


def _with_arguments(
    fn: Callable[..., Any], args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> Callable[[Any], Any]:
    positional, named = tuple(args or ()), dict(kwargs or {})
    return lambda _: fn(*positional, **named)
