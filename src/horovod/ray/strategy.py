# SPDX-License-Identifier: Apache-2.0
"""Placement of a static job's workers: a bundle for each worker, or a bundle for each host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.util.placement_group import get_current_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from horovod.common.log import logger as logger
from horovod.ray.capacity import (
    NotEnoughResourcesError,
    alive_nodes,
    described,
    fits,
    shortage,
    shown,
    too_late,
    warn_of_wait,
)
from horovod.ray.utils import map_blocking as map_blocking
from horovod.ray.worker import BaseHorovodWorker as BaseHorovodWorker

_LEAST_CPU = 0.001  # Ray refuses empty bundles


def create_placement_group(
    resources_per_bundle: Mapping[str, float], num_bundles: int, pg_timeout: float, pg_strategy: str
) -> Any:
    """Return a placement group that is ready. Nodes that join within `pg_timeout` seconds are used.

    Raises:
        TimeoutError: Other jobs hold the resources.
        NotEnoughResourcesError: The cluster is too small.
    """
    bundle = {name: amount for name, amount in resources_per_bundle.items() if amount} or {"CPU": _LEAST_CPU}
    spread = pg_strategy == "STRICT_SPREAD"
    # Create the group before looking for a shortage, because an autoscaler adds nodes only for a pending group.
    group = placement_group([dict(bundle) for _ in range(num_bundles)], strategy=pg_strategy)
    missing = shortage(bundle, num_bundles, spread)
    if missing:
        warn_of_wait(missing, pg_timeout)
    if group.wait(pg_timeout):
        return group
    remove_placement_group(group)
    missing = shortage(bundle, num_bundles, spread)
    if missing:
        raise too_late(missing, pg_timeout)
    free = {name: amount for name, amount in ray.available_resources().items() if name in bundle}
    raise TimeoutError(
        f"{num_bundles} bundles with {shown(bundle)} each ({pg_strategy}) were not free within {pg_timeout:g} s "
        f"(create_settings(placement_group_timeout_s=...)). The cluster has {described(_resources())}, of which "
        f"{shown(free) or 'nothing'} is free now: other jobs hold the rest."
    )


def _resources() -> list[Mapping[str, float]]:
    return [node["Resources"] for node in alive_nodes()]


class BaseStrategy:
    """Placement strategy. Call `create_workers()` once; `shutdown()` ends the workers and releases their resources."""

    placement_group: Any = None
    workers: list[Any] | None = None

    @property
    def num_workers(self) -> int:
        raise NotImplementedError

    def create_workers(self) -> list[Any]:
        raise NotImplementedError

    @classmethod
    def get_node_workers(cls, workers: Sequence[Any]) -> list[Any]:
        """Return the first worker of each node."""
        nodes = map_blocking(lambda worker: worker.node_id.remote(), workers)
        return list(dict(reversed(list(zip(nodes, workers, strict=True)))).values())[::-1]

    def shutdown(self) -> None:
        for worker in self.workers or ():
            ray.kill(worker, no_restart=True)
        self.workers = None
        if self.placement_group is not None:
            remove_placement_group(self.placement_group)
            self.placement_group = None

    def _start(self, group: Any, bundle_index: int, cpus: float, gpus: float) -> Any:
        where = PlacementGroupSchedulingStrategy(
            placement_group=group, placement_group_bundle_index=bundle_index, placement_group_capture_child_tasks=False
        )
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0, "scheduling_strategy": where}
        return ray.remote(BaseHorovodWorker).options(**options).remote()


class ColocatedStrategy(BaseStrategy):
    """Strategy for `num_hosts` hosts with `num_workers_per_host` workers each."""

    def __init__(
        self,
        *,
        settings: Any,
        num_hosts: int,
        num_workers_per_host: int,
        use_gpu: bool,
        cpus_per_worker: float,
        gpus_per_worker: float | None,
    ) -> None:
        self.settings = settings
        self.num_hosts = num_hosts
        self.num_workers_per_host = num_workers_per_host
        self.cpus_per_worker = cpus_per_worker
        self.gpus_per_worker = (gpus_per_worker or 1) if use_gpu else 0

    @property
    def num_workers(self) -> int:
        return self.num_hosts * self.num_workers_per_host

    def create_workers(self) -> list[Any]:
        each = self.num_workers_per_host
        bundle = {"CPU": self.cpus_per_worker * each, "GPU": self.gpus_per_worker * each}
        limit_s = self.settings.placement_group_timeout_s
        self.placement_group = create_placement_group(bundle, self.num_hosts, limit_s, "STRICT_SPREAD")
        self.workers = [
            self._start(self.placement_group, host, self.cpus_per_worker, self.gpus_per_worker)
            for host in range(self.num_hosts)
            for _ in range(each)
        ]
        return self.workers


class PGStrategy(BaseStrategy):
    """Strategy for `num_workers` workers on as few nodes as possible, or in an existing placement group."""

    def __init__(
        self,
        *,
        settings: Any,
        num_workers: int,
        use_gpu: bool,
        cpus_per_worker: float,
        gpus_per_worker: float | None,
        placement_group: Any = None,
        force_create_placement_group: bool = False,
    ) -> None:
        self.settings = settings
        self._num_workers = num_workers
        self.cpus_per_worker = cpus_per_worker
        self.gpus_per_worker = (gpus_per_worker or 1) if use_gpu else 0
        current = None if force_create_placement_group else get_current_placement_group()
        self._given = placement_group if placement_group is not None else current

    @property
    def num_workers(self) -> int:
        return self._num_workers

    def resources_per_worker(self) -> dict[str, float]:
        return {"CPU": self.cpus_per_worker, "GPU": self.gpus_per_worker}

    def create_workers(self) -> list[Any]:
        limit_s = self.settings.placement_group_timeout_s
        if self._given is not None:
            self._require_room_in(self._given)
            group, indices = self._given, [-1] * self._num_workers  # wherever there is room
        else:
            group = create_placement_group(self.resources_per_worker(), self._num_workers, limit_s, "PACK")
            self.placement_group, indices = group, list(range(self._num_workers))
        self.workers = [self._start(group, index, self.cpus_per_worker, self.gpus_per_worker) for index in indices]
        return self.workers

    def _require_room_in(self, group: Any) -> None:
        """Raise NotEnoughResourcesError if the group is too small.

        The check ignores what the calling task holds of the group, because that is unknown.
        """
        need = {name: amount for name, amount in self.resources_per_worker().items() if amount}
        room = sum(fits(bundle, need) for bundle in group.bundle_specs)
        if room < self._num_workers:
            raise NotEnoughResourcesError(
                f"{self._num_workers} workers with {shown(need)} each were asked for, but the current placement group "
                f"has room for at most {room}: {[dict(bundle) for bundle in group.bundle_specs]}. Make it larger, or "
                "pass use_current_placement_group=False"
            )

    def shutdown(self) -> None:
        """End the workers and remove the placement group, unless it existed before."""
        super().shutdown()
