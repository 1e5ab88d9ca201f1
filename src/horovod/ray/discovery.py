# SPDX-License-Identifier: Apache-2.0
"""Nodes of a Ray cluster as hosts with slots, for elastic jobs. A host's name is the node's id."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any

import ray

from horovod.common.log import logger
from horovod.launcher.elastic.discovery import HostDiscovery
from horovod.ray.capacity import Resources, alive_nodes, fits


class NodeDiscovery(HostDiscovery):
    """Discovery that offers as many slots on each node as its resources allow, whether they are in use or not."""

    def __init__(self, use_gpu: bool = False, cpus_per_slot: float = 1, gpus_per_slot: float | None = 1) -> None:
        self.slot: Resources = slot_resources(use_gpu, cpus_per_slot, gpus_per_slot)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        leaving = _draining_nodes()
        found = {
            name: fits(node["Resources"], self.slot)
            for node in alive_nodes()
            if (name := _host_name(node)) not in leaving
        }
        return {node: slots for node, slots in found.items() if slots > 0}


def slot_resources(use_gpu: bool, cpus: float, gpus: float | None) -> dict[str, float]:
    """Return the resources of one worker.

    If nothing is requested, this is one CPU, because any number of empty requests would fit a node.
    """
    wanted = {"CPU": float(cpus), "GPU": float(gpus or 1) if use_gpu else 0.0}
    return {name: amount for name, amount in wanted.items() if amount} or {"CPU": 1.0}


class ChangingDiscovery(NodeDiscovery):
    """Discovery for tests: it shows a part of the cluster's nodes, which changes at intervals."""

    def __init__(
        self,
        min_hosts: int,
        max_hosts: int,
        change_frequency_s: float,
        use_gpu: bool = False,
        cpus_per_slot: float = 1,
        gpus_per_slot: float | None = 1,
        verbose: bool = True,
        _graceful: bool = True,
    ) -> None:
        super().__init__(use_gpu, cpus_per_slot, gpus_per_slot)
        self._bounds = min_hosts, max_hosts
        self._every_s = change_frequency_s
        self._verbose = verbose
        self._graceful = _graceful
        self._shown: dict[str, int] = {}
        self._changed_at: float | None = None

    def add_host(self, hosts: dict[str, int]) -> None:
        """Add one of the hosts at random."""
        new = sorted(set(hosts) - set(self._shown))
        if new:
            name = random.choice(new)
            self._shown[name] = hosts[name]
            self._say(f"added {name}")

    def remove_host(self, hosts: dict[str, int]) -> None:
        """Remove a host at random if `_graceful`, otherwise one of its slots."""
        if not self._shown:
            return
        name = random.choice(sorted(self._shown))
        if self._graceful or self._shown[name] <= 1:
            del self._shown[name]
        else:
            self._shown[name] -= 1
        self._say(f"removed {name}")

    def change_hosts(self, hosts: dict[str, int]) -> None:
        """Add or remove one host, within the bounds."""
        few, many = self._bounds
        possible = []
        if len(self._shown) < min(many, len(hosts)):
            possible.append(self.add_host)
        if len(self._shown) > few:
            possible.append(self.remove_host)
        if possible:
            random.choice(possible)(hosts)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        hosts = super().find_available_hosts_and_slots()
        self._shown = {name: slots for name, slots in self._shown.items() if name in hosts}
        while len(self._shown) < min(self._bounds[0], len(hosts)):
            self.add_host(hosts)
        now = time.monotonic()
        if self._changed_at is None:
            self._changed_at = now
        elif now - self._changed_at >= self._every_s:
            self._changed_at = now
            self.change_hosts(hosts)
        return dict(self._shown)

    def _say(self, text: str) -> None:
        if self._verbose:
            logger.info("hosts of the discovery for tests: %s", text)


def _host_name(node: Mapping[str, Any]) -> str:
    """Return the node's id, or its address if it has no id, as in simulated clusters."""
    return str(node.get("NodeID") or node["NodeManagerAddress"])


def node_called(name: str) -> dict[str, Any] | None:
    """Return the living node with this id, address or name, or None."""
    names = ("NodeID", "NodeManagerAddress", "NodeManagerHostname", "NodeName")
    return next((node for node in alive_nodes() if name in [node.get(key) for key in names]), None)


def head_node() -> str:
    """Return the id of the head node, which an elastic job needs as much as Ray itself does."""
    nodes = alive_nodes()
    head = [node for node in nodes if "node:__internal_head__" in node["Resources"]]
    return str((head or nodes)[0]["NodeID"])


def _draining_nodes() -> set[str]:
    """Return the nodes that Ray is about to give back.

    Only a private function of Ray tells, and it may be missing.
    """
    try:
        return set(ray._private.state.state.get_draining_nodes())
    except Exception:
        return set()
