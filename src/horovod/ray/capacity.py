# SPDX-License-Identifier: Apache-2.0
"""Whether a cluster can ever hold what is asked for: said by name at once, where Ray itself would wait without end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import ray

Resources = Mapping[str, float]
_SHOWN = ("CPU", "GPU")


class NotEnoughResourcesError(ValueError):
    """More was asked for than the cluster can ever give."""


def fits(node: Resources, bundle: Resources) -> int:
    """How many bundles one node holds."""
    counts = [math.floor(node.get(name, 0.0) / amount + 1e-9) for name, amount in bundle.items() if amount > 0]
    return min(counts) if counts else 1 << 30


def most_bundles(nodes: Sequence[Resources], bundle: Resources, one_for_each_node: bool) -> int:
    held = [fits(node, bundle) for node in nodes]
    return sum(min(count, 1) if one_for_each_node else count for count in held)


def require_possible(bundle: Resources, wanted: int, one_for_each_node: bool = False) -> None:
    """NotEnoughResourcesError (a ValueError) if the cluster can never hold so many of these bundles."""
    nodes = [node["Resources"] for node in alive_nodes()]
    possible = most_bundles(nodes, bundle, one_for_each_node)
    if possible >= wanted or _can_grow(bundle, wanted):
        return
    what = "hosts" if one_for_each_node else "workers"
    raise NotEnoughResourcesError(
        f"{wanted} {what} with {shown(bundle)} each were asked for, but this cluster can hold at most {possible}: "
        f"{described(nodes)}. Ask for fewer, lower cpus_per_worker or gpus_per_worker, or add nodes."
    )


def alive_nodes() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def described(nodes: Sequence[Resources]) -> str:
    """Equal nodes together: `2 nodes with CPU 4`."""
    counts: dict[str, int] = {}
    for node in nodes:
        text = shown({name: node.get(name, 0.0) for name in _SHOWN if node.get(name)}) or "nothing"
        counts[text] = counts.get(text, 0) + 1
    return ", ".join(f"{count} node{'' if count == 1 else 's'} with {text}" for text, count in counts.items())


def shown(resources: Resources) -> str:
    return " and ".join(f"{name} {amount:g}" for name, amount in resources.items())


def _can_grow(bundle: Resources, wanted: int) -> bool:
    """Whether an autoscaler may add enough nodes. Ray says so only in a private place, which may not be there."""
    try:
        most = ray._private.state.state.get_max_resources_from_cluster_config()
    except Exception:
        return False
    return bool(most) and all(most.get(name, 0) >= amount * wanted for name, amount in bundle.items())
