# SPDX-License-Identifier: Apache-2.0
"""Check whether a cluster can hold the requested resources, with a limited wait for nodes that join.

Ray itself would wait without a limit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group

from horovod.common.log import logger

Resources = Mapping[str, float]
_SHOWN = ("CPU", "GPU")
_LOOK_S = 0.5


class NotEnoughResourcesError(ValueError, TimeoutError):
    """Error: the request exceeds the cluster's capacity, and not enough nodes joined within the time limit."""


def fits(node: Resources, bundle: Resources) -> int:
    """Return how many bundles one node can hold."""
    counts = [math.floor(node.get(name, 0.0) / amount + 1e-9) for name, amount in bundle.items() if amount > 0]
    return min(counts) if counts else 1 << 30


def most_bundles(nodes: Sequence[Resources], bundle: Resources, one_for_each_node: bool) -> int:
    held = [fits(node, bundle) for node in nodes]
    return sum(min(count, 1) if one_for_each_node else count for count in held)


def shortage(bundle: Resources, wanted: int, one_for_each_node: bool = False) -> str:
    """Return why the living nodes cannot hold `wanted` of these bundles, or an empty string if they can.

    An autoscaler that may add enough nodes counts as enough.
    """
    nodes = [node["Resources"] for node in alive_nodes()]
    possible = most_bundles(nodes, bundle, one_for_each_node)
    if possible >= wanted or _can_grow(bundle, wanted):
        return ""
    what = "hosts" if one_for_each_node else "workers"
    return (
        f"{wanted} {what} with {shown(bundle)} each were asked for, but this cluster can hold at most {possible}: "
        f"{described(nodes)}"
    )


def warn_of_wait(missing: str, limit_s: float) -> None:
    """Log that the job waits for nodes because of a shortage."""
    logger.warning("%s. Waiting up to %g s for nodes to join (placement_group_timeout_s)", missing, limit_s)


def too_late(missing: str, limit_s: float) -> NotEnoughResourcesError:
    """Return the error for a shortage that lasted until the time limit."""
    return NotEnoughResourcesError(
        f"{missing}. Not enough nodes joined within {limit_s:g} s (placement_group_timeout_s). Ask for fewer, lower "
        "cpus_per_worker or gpus_per_worker, or add nodes."
    )


def await_room(bundle: Resources, wanted: int, limit_s: float) -> None:
    """Wait until the cluster can hold `wanted` of these bundles, even if other jobs use it at present.

    Raises:
        NotEnoughResourcesError: Nodes that could hold them did not join within the time limit.
    """
    missing = shortage(bundle, wanted)
    if not missing:
        return
    warn_of_wait(missing, limit_s)
    deadline = time.monotonic() + limit_s
    group = placement_group([dict(bundle) for _ in range(wanted)])  # shows autoscalers what is missing
    try:
        while missing and not group.wait(_LOOK_S):
            missing = shortage(bundle, wanted)
            if missing and time.monotonic() >= deadline:
                raise too_late(missing, limit_s)
    finally:
        remove_placement_group(group)


def alive_nodes() -> list[dict[str, Any]]:
    """Return the entries of ray.nodes() for living nodes. Some versions of Ray spell the key "alive"."""
    return [node for node in ray.nodes() if node.get("Alive", node.get("alive", False))]


def described(nodes: Sequence[Resources]) -> str:
    """Return a text that groups equal nodes: `2 nodes with CPU 4`."""
    counts: dict[str, int] = {}
    for node in nodes:
        text = shown({name: node.get(name, 0.0) for name in _SHOWN if node.get(name)}) or "nothing"
        counts[text] = counts.get(text, 0) + 1
    return ", ".join(f"{count} node{'' if count == 1 else 's'} with {text}" for text, count in counts.items())


def shown(resources: Resources) -> str:
    return " and ".join(f"{name} {amount:g}" for name, amount in resources.items())


def _can_grow(bundle: Resources, wanted: int) -> bool:
    """Return True if an autoscaler may add enough nodes.

    Only a private function of Ray tells, and it may be missing.
    """
    try:
        most = ray._private.state.state.get_max_resources_from_cluster_config()
    except Exception:
        return False
    return bool(most) and all(most.get(name, 0) >= amount * wanted for name, amount in bundle.items())
