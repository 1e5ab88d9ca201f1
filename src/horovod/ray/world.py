# SPDX-License-Identifier: Apache-2.0
"""A world of ranks on Ray, seen from whoever starts it: a zero-CPU actor on rank 0's node serves the rendezvous.

    world = RayWorld([node id of each worker, by rank], settings)
    ray.get([worker.become.remote(become_rank, variables) for worker, variables in zip(workers, world.environments)])

The variables hold the world's secret: pass them as the argument of a call, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from horovod.common.exceptions import HorovodInitializationError
from horovod.ray.collecting import in_words
from horovod.ray.coordinator import Coordinator

_ANSWER_LIMIT_S = 10.0


class RayWorld:
    """`environments`: by rank, what `become_rank` takes. `close()` it when the workers are gone."""

    def __init__(self, nodes: Sequence[str], settings: Any, hostnames: Sequence[str] | None = None) -> None:
        """`nodes`: the Ray node of each rank. HorovodInitializationError if the coordinator does not come to life."""
        self.nodes = list(nodes)
        self._coordinator = coordinator_on(nodes[0], _WorldCoordinator, settings)
        asked = self._coordinator.open.remote(self.nodes, list(hostnames or nodes))
        self.environments: list[dict[str, str]] = answer_of(
            asked, getattr(settings, "timeout_s", None) or 30, f"the coordinator on node {nodes[0]}"
        )

    def trouble(self) -> str | None:
        """What is wrong with the coordinator, without which hvd.init() would wait until its time limit; else None."""
        asked = self._coordinator.is_there.remote()
        try:
            answer_of(asked, _ANSWER_LIMIT_S, f"the coordinator on node {self.nodes[0][:12]}, where ranks meet,")
        except HorovodInitializationError as error:
            return str(error)
        return None

    def lose(self, rank: int, text: str) -> None:
        """Ranks that wait in hvd.init() for this one raise with this text, instead of waiting for their time limit."""
        self._coordinator.lose.remote(rank, text)

    def find(self, rank: int) -> None:
        """The rank may come to the next hvd.init() after all."""
        with suppress(RayError):
            ray.get(self._coordinator.find.remote(rank), timeout=_ANSWER_LIMIT_S)

    def close(self) -> None:
        """End the rendezvous. Idempotent."""
        ray.kill(self._coordinator, no_restart=True)


class _WorldCoordinator(Coordinator):
    """The same as an actor."""

    def is_there(self) -> bool:
        return True

    def open(self, nodes: Sequence[str], hostnames: Sequence[str]) -> list[dict[str, str]]:
        for rank, (node, hostname) in enumerate(zip(nodes, hostnames, strict=True)):
            self.register(hostname, node, rank)
        places = self.finalize_registration()
        common = self.establish_rendezvous()
        return [
            {**common, "HOROVOD_HOSTNAME": node, **{name: str(number) for name, number in places[rank].items()}}
            for rank, node in enumerate(nodes)
        ]

    def __repr__(self) -> str:
        return "horovod coordinator"


def coordinator_on(node_id: str, actor_class: type, *arguments: Any) -> Any:
    """An actor on that node that takes nothing from the workers: no CPU, and nobody restarts it."""
    where = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    options = {"num_cpus": 0, "max_restarts": 0, "scheduling_strategy": where}
    return ray.remote(actor_class).options(**options).remote(*arguments)


def answer_of(reference: Any, limit_s: float, who: str) -> Any:
    """What an actor answers; HorovodInitializationError that says who did not."""
    try:
        return ray.get(reference, timeout=limit_s)
    except GetTimeoutError:
        raise HorovodInitializationError(
            f"{who} did not answer within {limit_s:g} s (create_settings(timeout_s=...))"
        ) from None
    except RayError as error:
        raise HorovodInitializationError(f"{who} failed: {in_words(error)}") from error
