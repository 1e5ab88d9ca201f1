# SPDX-License-Identifier: Apache-2.0
"""Environment of workers that programs start themselves, under Horovod's names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from horovod.common.joining.interfaces import loopback_interface
from horovod.common.topology import secret_variable
from horovod.launcher.elastic.rendezvous import secret_at
from horovod.launcher.start.hosts import SlotInfo
from horovod.launcher.start.worker_environment import slot_environment


class MultiFile:
    """File object that writes to several files."""

    def __init__(self, files: Iterable[TextIO]) -> None:
        self._files = list(files)

    def write(self, text: str) -> None:
        for file in self._files:
            file.write(text)

    def flush(self) -> None:
        for file in self._files:
            file.flush()


def create_slot_env_vars(slot_info: SlotInfo) -> dict[str, str]:
    """Return the variables that hold a worker's place.

    A slot of ElasticDriver adds its birth id and the job's secret.
    """
    return {**slot_environment(slot_info), **getattr(slot_info, "variables", {})}


def create_run_env_vars(server_ip: str, nics: Iterable[str] | None, port: int, elastic: bool = False) -> dict[str, str]:
    """Return the variables that all workers need to find the rendezvous.

    They include the secret of the RendezvousServer that this process runs at `port`, so keep them off command lines. A
    program that serves the rendezvous in another way must pass on the secret itself.
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
