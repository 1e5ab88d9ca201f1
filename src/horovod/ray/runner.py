# SPDX-License-Identifier: Apache-2.0
"""RayExecutor: the workers of a job as Ray actors, which the driver calls like functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from horovod.common.log import logger as logger
from horovod.launcher.compat import secret as secret
from horovod.launcher.compat import timeout as timeout
from horovod.launcher.elastic.rendezvous import RendezvousServer as RendezvousServer
from horovod.launcher.start import hosts as hosts
from horovod.ray.adapter import Adapter as Adapter
from horovod.ray.adapter import BaseParams as BaseParams
from horovod.ray.coordinator import Coordinator as Coordinator
from horovod.ray.elastic_v2 import ElasticParams as ElasticParams
from horovod.ray.static import StaticAdapter as StaticAdapter
from horovod.ray.strategy import ColocatedStrategy as ColocatedStrategy
from horovod.ray.strategy import PGStrategy as PGStrategy
from horovod.ray.utils import detect_nics as detect_nics
from horovod.ray.utils import map_blocking as map_blocking
from horovod.ray.utils import nics_to_env_var as nics_to_env_var

_START_MESSAGE = (
    "Timed out waiting for {activity} after {timeout} s. Check that nodes reach each other, or raise timeout_s."
)


@dataclass
class MiniSettings:
    """Time limits and options of a job. `key` is the secret of its worlds. The ssh options have no effect."""

    nics: set[str] | None = None
    verbose: int = 1
    key: bytes | None = field(default_factory=secret.make_secret_key, repr=False)
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    timeout_s: int = 300
    placement_group_timeout_s: int = 100
    elastic: bool = False

    @property
    def start_timeout(self) -> timeout.Timeout:
        return timeout.Timeout(self.timeout_s, message=_START_MESSAGE)


@dataclass
class StaticParams(BaseParams):
    """Parameters of a job whose workers stay."""

    num_workers: int | None = None
    num_hosts: int | None = None
    num_workers_per_host: int = 1
    use_current_placement_group: bool = True

    @property
    def elastic(self) -> bool:
        return False

    @property
    def adapter(self) -> type[Adapter]:
        return StaticAdapter


class RayExecutor:
    """Workers on a Ray cluster, each of which is a rank.

    Workers either stay (`num_workers`, or `num_hosts` with `num_workers_per_host`) or come and go (`min_workers`). Call
    start(), then run() as often as needed, then shutdown(). Ray's client (`ray.init('ray://...')`) works too.

    Args:
        settings: What RayExecutor.create_settings() returns.
        num_workers: Number of workers, placed on as few nodes as possible.
        num_hosts: Number of nodes, each with `num_workers_per_host` workers.
        num_workers_per_host: Workers on each node, with `num_hosts`.
        cpus_per_worker: CPUs that Ray reserves for each worker.
        use_gpu: Reserve GPUs for the workers.
        gpus_per_worker: GPUs for each worker. It needs use_gpu=True.
        use_current_placement_group: With `num_workers`, place the workers in the placement group of the caller, if
            there is one.
        min_workers: The fewest workers that the job may run with.
        max_workers: The most workers that the job may run with.
        reset_limit: Fail after this many resets (elastic jobs).
        cooldown_range: Seconds after which a failed node may come back, as [shortest, longest] (elastic jobs).
        elastic_timeout: Seconds to wait for enough workers (elastic jobs).
        override_discovery: Find nodes through Ray, instead of by the settings' own discovery (elastic jobs).

    Raises:
        ValueError: Arguments are not valid or do not fit together.

    Example:
        >>> executor = RayExecutor(RayExecutor.create_settings(), num_workers=2)
        >>> executor.start()  # then executor.run(train, args=[0.1]) and executor.shutdown()
    """

    @classmethod
    def create_settings(
        cls,
        timeout_s: int = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: int = 100,
        nics: set[str] | None = None,
    ) -> MiniSettings:
        """Return settings for RayExecutor.

        The arguments for ssh are accepted for programs written for Horovod.

        Args:
            timeout_s: Seconds that ranks wait for each other in hvd.init().
            ssh_identity_file: File to which `ssh_str` is written if it does not exist. It is not used.
            ssh_str: Text of a private key, which is not used.
            placement_group_timeout_s: Seconds that start() waits for resources, and for nodes that join.
            nics: Names of the network interfaces to use.

        Returns:
            The settings.
        """
        if ssh_str and ssh_identity_file and not os.path.exists(ssh_identity_file):
            descriptor = os.open(ssh_identity_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w") as file:
                file.write(ssh_str)
        return MiniSettings(
            ssh_identity_file=ssh_identity_file,
            timeout_s=timeout_s,
            placement_group_timeout_s=placement_group_timeout_s,
            nics=nics,
        )

    def __init__(
        self,
        settings: Any,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: int = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: list[int] | None = None,
        elastic_timeout: int = 600,
        override_discovery: bool = True,
    ) -> None:
        given = dict(locals())
        if max_workers is not None and min_workers is None:
            raise ValueError(f"max_workers={max_workers} requires min_workers, the fewest workers the job may run with")
        if min_workers is not None and (num_workers is not None or num_hosts is not None):
            raise ValueError(
                f"pass either min_workers (workers come and go) or num_workers or num_hosts (they stay), not both: "
                f"min_workers={min_workers}, num_workers={num_workers}, num_hosts={num_hosts}"
            )
        kind: type[StaticParams] | type[ElasticParams] = StaticParams if min_workers is None else ElasticParams
        self.params = kind(**{one.name: given[one.name] for one in fields(kind)})
        self.settings = settings
        adapter: Any = self.params.adapter
        self.adapter = adapter(settings, **vars(self.params))

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Start the workers, and create an object in each of them.

        Args:
            executable_cls: Class of the object, or None.
            executable_args: Positional arguments for the class.
            executable_kwargs: Keyword arguments for the class.
            extra_env_vars: Environment variables of the workers.
        """
        self.adapter.start(executable_cls, executable_args, executable_kwargs, extra_env_vars)

    def execute(self, fn: Callable[[Any], Any], callbacks: Sequence[Callable[..., Any]] | None = None) -> list[Any]:
        """Call a function with each worker's object.

        Args:
            fn: The function, whose argument is the object of start().
            callbacks: Functions that get what the workers pass to ray_logger.log().

        Returns:
            One result for each worker, in the order of the ranks.

        Raises:
            HorovodInternalError: A worker died. The text names its rank and node.
        """
        return list(self.adapter.execute(fn, callbacks))

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[..., Any]] | None = None,
    ) -> list[Any]:
        """Call a function in each worker.

        If the function raises an exception, so does this method.

        Args:
            fn: The function, which is pickled by value.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            callbacks: Functions that get what the workers pass to ray_logger.log().

        Returns:
            One result for each worker, in the order of the ranks.

        Raises:
            HorovodInternalError: A worker died. The text names its rank and node.
        """
        return list(self.adapter.run(fn, args, kwargs, callbacks))

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Start a function in each worker without waiting for it.

        Args:
            fn: The function, which is pickled by value.
            args: Its positional arguments.
            kwargs: Its keyword arguments.

        Returns:
            Ray's references to the results, in the order of the ranks.
        """
        return list(self.adapter.run_remote(fn, args, kwargs))

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Call a function with the object of rank 0.

        Args:
            fn: The function, whose argument is the object of start().

        Returns:
            What the function returned.
        """
        return self.adapter.execute_single(fn)

    def shutdown(self) -> None:
        """End the workers and release their resources.

        This may be called twice.
        """
        self.adapter.shutdown()


HorovodOnRayExecutor = RayExecutor  # another name by which programs call it
