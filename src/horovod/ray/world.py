# SPDX-License-Identifier: Apache-2.0
"""World of ranks on Ray for the process that starts it. A zero-CPU actor on rank 0's node serves the rendezvous.

    world = RayWorld([node id of each worker, by rank], settings)
    ray.get([worker.become.remote(become_rank, variables) for worker, variables in zip(workers, world.environments)])

The variables contain the world's secret: pass them only as the argument of a call.
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
    """World of ranks. `environments` holds the argument of `become_rank` for each rank.

    Call `close()` when the workers are gone.
    """

    def __init__(self, nodes: Sequence[str], settings: Any, hostnames: Sequence[str] | None = None) -> None:
        """Start the coordinator.

        Args:
            nodes: The Ray node of each rank.

        Raises:
            HorovodInitializationError: The coordinator does not start.
        """
        self.nodes = list(nodes)
        self._coordinator = coordinator_on(nodes[0], _WorldCoordinator, settings)
        asked = self._coordinator.open.remote(self.nodes, list(hostnames or nodes))
        self.environments: list[dict[str, str]] = answer_of(
            asked, getattr(settings, "timeout_s", None) or 30, f"the coordinator on node {nodes[0]}"
        )

    def trouble(self) -> str | None:
        """Return what is wrong with the coordinator, or None.

        Without the coordinator, hvd.init() would wait until its time limit.
        """
        asked = self._coordinator.is_there.remote()
        try:
            answer_of(asked, _ANSWER_LIMIT_S, f"the coordinator on node {self.nodes[0][:12]}, where ranks meet,")
        except HorovodInitializationError as error:
            return str(error)
        return None

    def lose(self, rank: int, text: str) -> None:
        """Let ranks that wait for this rank in hvd.init() raise an error with this text at once."""
        self._coordinator.lose.remote(rank, text)

    def find(self, rank: int) -> None:
        """Let the next hvd.init() wait for this rank again after `lose`."""
        with suppress(RayError):
            ray.get(self._coordinator.find.remote(rank), timeout=_ANSWER_LIMIT_S)

    def close(self) -> None:
        """End the rendezvous. Safe to call twice."""
        ray.kill(self._coordinator, no_restart=True)


class _WorldCoordinator(Coordinator):
    """Coordinator as an actor."""

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
    """Return an actor on that node that takes no CPU from the workers and is never restarted."""
    where = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    options = {"num_cpus": 0, "max_restarts": 0, "scheduling_strategy": where}
    return ray.remote(actor_class).options(**options).remote(*arguments)


def answer_of(reference: Any, limit_s: float, who: str) -> Any:
    """Return an actor's answer. Raise HorovodInitializationError that names `who` if it fails or comes too late."""
    try:
        return ray.get(reference, timeout=limit_s)
    except GetTimeoutError:
        raise HorovodInitializationError(
            f"{who} did not answer within {limit_s:g} s (create_settings(timeout_s=...))"
        ) from None
    except RayError as error:
        raise HorovodInitializationError(f"{who} failed: {in_words(error)}") from error
