# SPDX-License-Identifier: Apache-2.0
"""Horovod's built-in launcher under its old import path. What is not here raises on use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from horovod.common.joining.interfaces import loopback_interface
from horovod.common.not_yet import function
from horovod.common.topology import secret_variable
from horovod.launcher.start.hosts import SlotInfo, get_host_assignments, parse_hosts
from horovod.launcher.start.worker_environment import slot_environment
from horovod.runner.elastic.rendezvous import RendezvousServer, secret_at

__all__ = [
    "MultiFile",
    "RendezvousServer",
    "create_run_env_vars",
    "create_slot_env_vars",
    "get_host_assignments",
    "get_run_command",
    "gloo_run",
    "gloo_run_elastic",
    "launch_gloo",
    "launch_gloo_elastic",
    "parse_hosts",
    "register_shutdown_event",
]

get_run_command = function(__name__, "get_run_command")
gloo_run = function(__name__, "gloo_run")
gloo_run_elastic = function(__name__, "gloo_run_elastic")
launch_gloo = function(__name__, "launch_gloo")
launch_gloo_elastic = function(__name__, "launch_gloo_elastic")
register_shutdown_event = function(__name__, "register_shutdown_event")


class MultiFile:
    """Writes go to all of the files."""

    def __init__(self, files: Iterable[TextIO]) -> None:
        self._files = list(files)

    def write(self, text: str) -> None:
        for file in self._files:
            file.write(text)

    def flush(self) -> None:
        for file in self._files:
            file.flush()


def create_slot_env_vars(slot_info: SlotInfo) -> dict[str, str]:
    """What tells a worker its place. For a slot of ElasticDriver's also its number and the job's secret."""
    return {**slot_environment(slot_info), **getattr(slot_info, "variables", {})}


def create_run_env_vars(server_ip: str, nics: Iterable[str] | None, port: int, elastic: bool = False) -> dict[str, str]:
    """Return what all workers need to find the rendezvous.

    The secret of a RendezvousServer of this process at `port` is included: keep it off command lines. A program that
    serves the rendezvous in another way passes the secret on itself.
    """
    names = sorted(nics or []) or [loopback_interface()]
    variables = {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": server_ip,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": names[0],
        "NCCL_SOCKET_IFNAME": ",".join(names),
    }
    secret = secret_at(port)
    if secret is not None:
        variables |= secret_variable(secret)
    return {**variables, "HOROVOD_ELASTIC": "1"} if elastic else variables
