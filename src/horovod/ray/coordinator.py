# SPDX-License-Identifier: Apache-2.0
"""Places of the ranks in a world on Ray, and their rendezvous, for an actor (world.py) or a simple process.

The world's secret leaves this object only in the result of `establish_rendezvous`, which is passed to the workers as
the argument of a call. Names and runtime environments, which Ray's dashboard shows, never contain it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import ray

from horovod.common.joining.interfaces import interface_address
from horovod.common.log import logger
from horovod.common.rendezvous.protocol import make_secret
from horovod.common.rendezvous.server import Server
from horovod.launcher.start.hosts import SlotInfo
from horovod.launcher.start.worker_environment import rendezvous_environment, slot_environment
from horovod.ray.utils import nics_to_env_var


class Coordinator:
    """Coordinator of one world: call `register` for every rank, `finalize_registration`, and `establish_rendezvous`."""

    rendezvous: Server | None = None
    global_rendezv_port: int | None = None
    nics: Sequence[str] | None = None
    node_id_by_rank: dict[str, list[int]] | None = None  # ranks by node id, despite the public name

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self.nics = sorted(settings.nics) if getattr(settings, "nics", None) else None
        self.node_id_by_rank = {}
        self._hostnames: dict[str, str] = {}

    @property
    def world_size(self) -> int:
        return sum(len(ranks) for ranks in self._ranks_by_node.values())

    @property
    def hostnames(self) -> list[str]:
        """Return one name for each node, even if several nodes share a machine."""
        return list(self._hostnames.values())

    @property
    def node_id_string(self) -> str:
        """Return nodes and their numbers of ranks, in the notation of -H."""
        return ",".join(f"{node}:{len(ranks)}" for node, ranks in self._ranks_by_node.items())

    @property
    def _ranks_by_node(self) -> dict[str, list[int]]:
        assert self.node_id_by_rank is not None
        return self.node_id_by_rank

    def register(self, hostname: str, node_id: str, world_rank: int) -> None:
        self._ranks_by_node.setdefault(node_id, []).append(world_rank)
        self._hostnames[node_id] = hostname

    def finalize_registration(self) -> dict[int, dict[str, int]]:
        """Return each rank's place as integers, such as HOROVOD_LOCAL_RANK.

        The host's name is missing: a rank's HOROVOD_HOSTNAME is the node id with which it was registered.
        """
        return {slot.rank: _numbers(slot) for slot in slots_of(self._ranks_by_node)}

    def establish_rendezvous(self) -> dict[str, str]:
        """Serve the rendezvous on this node, and return the variables with which every rank connects to it."""
        if self.rendezvous is None:
            self._secret = usable_secret(getattr(self.settings, "key", None))
            self._address = interface_address(self.nics[0]) if self.nics else str(ray.util.get_node_ip_address())
            self.rendezvous = Server(self._address, secret=self._secret, on_slow_meeting=logger.warning).start()
            self.global_rendezv_port = self.rendezvous.port
        return {
            **rendezvous_environment(self._address, self.rendezvous.port, self._secret),
            **nics_to_env_var(list(self.nics or ())),
            "HOROVOD_GLOO_TIMEOUT_SECONDS": meeting_limit(self.settings),
        }

    def lose(self, rank: int, text: str) -> None:
        """Let ranks that wait for this rank in hvd.init(), now or later, raise an error with this text."""
        if self.rendezvous is not None:
            self.rendezvous.lose(rank, text)

    def find(self, rank: int) -> None:
        """Let hvd.init() wait for this rank again after `lose`."""
        if self.rendezvous is not None:
            self.rendezvous.find(rank)

    def stop(self) -> None:
        if self.rendezvous is not None:
            self.rendezvous.stop()
            self.rendezvous = None


def _numbers(slot: SlotInfo) -> dict[str, int]:
    return {name: int(value) for name, value in slot_environment(slot).items() if name != "HOROVOD_HOSTNAME"}


def slots_of(ranks_by_node: dict[str, list[int]]) -> list[SlotInfo]:
    """Return Horovod's six numbers for ranks that are already assigned to nodes."""
    nodes = {node: sorted(ranks) for node, ranks in sorted(ranks_by_node.items(), key=lambda item: min(item[1]))}
    size = sum(len(ranks) for ranks in nodes.values())
    slots = []
    for node, ranks in nodes.items():
        for local_rank, rank in enumerate(ranks):
            column = [other for other, there in nodes.items() if len(there) > local_rank]
            slots.append(
                SlotInfo(
                    hostname=node,
                    rank=rank,
                    local_rank=local_rank,
                    cross_rank=column.index(node),
                    size=size,
                    local_size=len(ranks),
                    cross_size=len(column),
                )
            )
    return sorted(slots, key=lambda slot: slot.rank)


def usable_secret(key: Any) -> bytes:
    """Return the settings' own key if it can serve as a secret, otherwise a new secret."""
    raw = key.encode() if isinstance(key, str) else key
    return raw if isinstance(raw, bytes) and len(raw) >= 16 else make_secret()


def meeting_limit(settings: Any) -> str:
    """Return the time limit for hvd.init(): the variable in the driver's environment, or the settings' timeout_s."""
    return os.environ.get("HOROVOD_GLOO_TIMEOUT_SECONDS") or str(getattr(settings, "timeout_s", None) or 30)
