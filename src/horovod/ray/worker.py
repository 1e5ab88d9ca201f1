# SPDX-License-Identifier: Apache-2.0
"""Worker of the executors: an actor that becomes a rank and then calls the user's functions."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray

from horovod.ray import metrics
from horovod.ray import ray_logger as ray_logger
from horovod.ray.joining import become_rank, fail_world, leave_world


class BaseHorovodWorker:
    """Actor of Ray that becomes a rank.

    The executors start it; programs do not.

    Args:
        world_rank: The rank until the worker joins a world.
        world_size: The number of ranks until then.

    Example:
        >>> actor = ray.remote(BaseHorovodWorker).remote()
        >>> ray.get(actor.hostname.remote())
    """

    executable: Any = None

    def __init__(self, world_rank: int = 0, world_size: int = 1) -> None:
        os.environ["HOROVOD_HOSTNAME"] = self.node_id()
        os.environ["HOROVOD_RANK"] = str(world_rank)
        os.environ["HOROVOD_SIZE"] = str(world_size)

    def __repr__(self) -> str:
        return f"{type(self).__name__} on {socket.gethostname()}"

    def node_id(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def hostname(self) -> str:
        """Return the name of the machine that this worker runs on."""
        return socket.gethostname()

    def get_gpu_ids(self) -> list[int]:
        """Return the ids of the GPUs that Ray has reserved for this worker."""
        return list(ray.get_gpu_ids())

    def describe(self) -> tuple[str, str, str, list[int]]:
        """Return the node's id, its address, its host name, and the ids of this worker's GPUs."""
        return self.node_id(), str(ray.util.get_node_ip_address()), self.hostname(), self.get_gpu_ids()

    def become(self, variables: Mapping[str, str]) -> None:
        """Take a place in a world; hvd.init() then meets the other ranks. Metrics name the job's id as their run."""
        become_rank(variables)
        metrics.publish_for(ray.get_runtime_context().get_job_id())

    def leave(self) -> None:
        """Leave the world; the next hvd.init() meets the other ranks again."""
        leave_world()

    def update_env_vars(self, env_vars: Mapping[str, Any]) -> None:
        os.environ.update({name: str(value) for name, value in env_vars.items()})

    def env_vars(self) -> dict[str, str]:
        return dict(os.environ)

    def start_executable(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Make the object that `execute` passes to functions."""
        if executable_cls is not None:
            self.executable = executable_cls(*(executable_args or ()), **(executable_kwargs or {}))

    def execute(self, func: Callable[[Any], Any]) -> Any:
        """Return `func(executable)`.

        If it fails, this rank leaves its world, so that the others do not wait for it in a collective.
        """
        try:
            return func(self.executable)
        except SystemExit as error:  # Ray would take it for the end of the actor
            if error.code in (None, 0):
                leave_world()
                return None
            fail_world(error)
            raise RuntimeError(f"the function called sys.exit({error.code!r})") from error
        except BaseException as error:
            fail_world(error)
            raise

    def set_queue(self, queue: Any) -> None:
        """Set the queue into which ray_logger.log() puts its values."""
        ray_logger.configure(queue)
