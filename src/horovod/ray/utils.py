# SPDX-License-Identifier: Apache-2.0
"""Helpers that the executors share. Ray's own trainer for Horovod imports them too."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import psutil
import ray

from horovod.common.lazily import lazily
from horovod.launcher.compat import network as network

__getattr__ = lazily(__name__, {"driver_service": "horovod.runner.driver.driver_service"})


def map_blocking(fn: Callable[[Any], Any], collection: Iterable[Any]) -> list[Any]:
    """Call `fn` for each element, and return the results of the calls that it starts."""
    return list(ray.get([fn(each) for each in collection]))


def nics_to_env_var(nics: Sequence[str]) -> dict[str, str]:
    """Return the variables that select interfaces.

    Without names, every rank uses the interface through which it reaches the rendezvous.
    """
    names = list(nics or ())
    return {"HOROVOD_GLOO_IFACE": names[0], "NCCL_SOCKET_IFNAME": ",".join(names)} if names else {}


def detect_nics(settings: Any, all_host_names: Sequence[str], node_workers: Sequence[Any] | None = None) -> list[str]:
    """Return the interfaces to use on all nodes: those of the settings, otherwise those that Ray uses on every node.

    The result is empty if the names differ. Then each rank uses the interface through which it reaches the rendezvous.
    """
    if getattr(settings, "nics", None):
        return sorted(settings.nics)
    if not node_workers:
        return sorted(interfaces_of_node(None))
    found = map_blocking(lambda worker: worker.execute.remote(interfaces_of_node), node_workers)
    return sorted(set.intersection(*map(set, found)))


def interfaces_of_node(_: object) -> list[str]:
    """Return the names of this machine's interfaces that have the address by which Ray knows this node."""
    address = ray.util.get_node_ip_address()
    return [
        name
        for name, entries in psutil.net_if_addrs().items()
        if any(entry.family in (socket.AF_INET, socket.AF_INET6) and entry.address == address for entry in entries)
    ]
