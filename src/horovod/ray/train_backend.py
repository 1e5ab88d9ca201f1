# SPDX-License-Identifier: Apache-2.0
"""Backend by which the workers of Ray Train become ranks, and its configuration. Ray Train's controller calls it.

Ray starts a group of workers, and a new group after each failure. Each group is a world of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.train.backend import Backend, BackendConfig

from horovod.ray.joining import become_rank
from horovod.ray.train_worker import Training
from horovod.ray.world import RayWorld

_DEBUGS_FROM = 2  # value of `verbose`


@dataclass
class HorovodConfig(BackendConfig):  # type: ignore[misc]  # Ray tells no types
    """How the workers of a HorovodTrainer meet.

    Args:
        nics: Names of the network interfaces to use. By default that through which a worker reaches rank 0's node.
        verbose: From 2 on, workers log what they do.
        key: Secret of the job. By default a new one for each group of workers.
        ssh_port: Has no effect.
        ssh_identity_file: Has no effect.
        ssh_str: Has no effect.
        timeout_s: Seconds that workers wait for each other in hvd.init().
        placement_group_timeout_s: Seconds that fit() waits for nodes to join a cluster that is too small.

    Example:
        >>> config = HorovodConfig(timeout_s=60)
        >>> trainer = HorovodTrainer(train, horovod_config=config)
    """

    nics: Collection[str] | None = None
    verbose: int = 1
    key: bytes | str | None = field(default=None, repr=False)
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    ssh_str: str | None = field(default=None, repr=False)
    timeout_s: int = 300
    placement_group_timeout_s: int = 100

    @property
    def backend_cls(self) -> type[Backend]:
        return _HorovodBackend

    @property
    def train_func_context(self) -> Callable[[], AbstractContextManager[Any]]:
        return Training

    def to_dict(self) -> dict[str, Any]:
        """Return the options that Ray's dashboard shows, without the secret.

        Returns:
            The options by name.
        """
        return {"nics": sorted(self.nics or ()), "verbose": self.verbose, "timeout_s": self.timeout_s}


class _HorovodBackend(Backend):  # type: ignore[misc]
    # show all workers of a node the node's GPUs, so that hvd.local_rank() is an index
    share_cuda_visible_devices = True

    _world: RayWorld | None = None

    def on_start(self, worker_group: Any, backend_config: HorovodConfig) -> None:
        self._close()  # close the world of a group that ended without on_shutdown
        places = [worker.metadata for worker in worker_group.get_workers()]
        nodes, names = [place.node_id for place in places], [place.hostname for place in places]
        self._world = RayWorld(nodes, backend_config, names)
        common = {"HOROVOD_LOG_LEVEL": "debug"} if backend_config.verbose >= _DEBUGS_FROM else {}
        ray.get(
            [
                worker_group.execute_single_async(rank, become_rank, {**common, **variables})
                for rank, variables in enumerate(self._world.environments)
            ]
        )

    def on_shutdown(self, worker_group: Any, backend_config: HorovodConfig) -> None:
        self._close()

    def _close(self) -> None:
        world, self._world = self._world, None
        if world is not None:
            world.close()
