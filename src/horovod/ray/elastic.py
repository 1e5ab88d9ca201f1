# SPDX-License-Identifier: Apache-2.0
"""ElasticRayExecutor: a function in workers that come and go with the cluster's nodes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray.exceptions import GetTimeoutError as GetTimeoutError

from horovod.common.exceptions import HorovodDeprecationWarning
from horovod.common.log import logger as logger
from horovod.launcher.compat import secret as secret
from horovod.launcher.compat import timeout as timeout
from horovod.launcher.compat.elastic_settings import ElasticSettings as ElasticSettings
from horovod.launcher.compat.gloo_run import create_run_env_vars as create_run_env_vars
from horovod.launcher.compat.gloo_run import create_slot_env_vars as create_slot_env_vars
from horovod.launcher.elastic.discovery import HostDiscovery as HostDiscovery
from horovod.launcher.elastic.driver import ElasticDriver as ElasticDriver
from horovod.launcher.elastic.rendezvous import RendezvousServer as RendezvousServer
from horovod.launcher.elastic.rendezvous import create_rendezvous_handler as create_rendezvous_handler
from horovod.ray.discovery import ChangingDiscovery, NodeDiscovery
from horovod.ray.elastic_v2 import ElasticAdapter
from horovod.ray.utils import detect_nics as detect_nics
from horovod.ray.worker import BaseHorovodWorker as BaseHorovodWorker

_START_MESSAGE = "Timed out waiting for {activity} after {timeout} s. Raise timeout_s if nodes are only slow."


class RayHostDiscovery(NodeDiscovery):
    """Discovery of living nodes, with the number of slots of each."""


class TestDiscovery(ChangingDiscovery, RayHostDiscovery):
    """Discovery for tests: it shows a part of the living nodes, which changes at intervals."""

    __test__ = False  # for pytest, which would collect it because of its name


class ElasticRayExecutor:
    """Workers on all nodes of a Ray cluster, whose number changes with the cluster.

    Call start(), then run() with a function that uses hvd.elastic.run.

    Args:
        settings: What ElasticRayExecutor.create_settings() returns, with min_num_proc and max_num_proc.
        use_gpu: Reserve GPUs for the workers.
        cpus_per_slot: CPUs that Ray reserves for each worker.
        gpus_per_slot: GPUs for each worker. It needs use_gpu=True.
        env_vars: Environment variables of the workers.
        override_discovery: Find nodes through Ray, instead of by the settings' own discovery.

    Raises:
        ValueError: `gpus_per_slot` is given without use_gpu=True.

    Example:
        >>> executor = ElasticRayExecutor(ElasticRayExecutor.create_settings(min_num_proc=2))
        >>> executor.start()  # then executor.run(train)
    """

    @staticmethod
    def create_settings(
        min_num_proc: int = 1,
        max_num_proc: int | None = None,
        reset_limit: int | None = None,
        elastic_timeout: int = 600,
        timeout_s: int = 30,
        ssh_identity_file: str | None = None,
        nics: Any = None,
        min_np: int | None = None,
        max_np: int | None = None,
        **kwargs: Any,
    ) -> ElasticSettings:
        """Return settings for ElasticRayExecutor.

        Args:
            min_num_proc: The fewest workers that the job may run with.
            max_num_proc: The most workers that the job may run with.
            reset_limit: Fail after this many resets.
            elastic_timeout: Seconds to wait for enough slots.
            timeout_s: Seconds for a worker to start, and for ranks to meet.
            ssh_identity_file: Has no effect.
            nics: Names of the network interfaces to use.
            min_np: Deprecated; use `min_num_proc`.
            max_np: Deprecated; use `max_num_proc`.
            **kwargs: Other settings of Horovod's ElasticSettings.

        Returns:
            The settings.
        """
        for old, new, value in (("min_np", "min_num_proc", min_np), ("max_np", "max_num_proc", max_np)):
            if value is not None:
                warnings.warn(f"{old} is deprecated, use {new}", HorovodDeprecationWarning, stacklevel=2)
        settings = ElasticSettings(
            discovery=kwargs.pop("discovery", None),
            min_num_proc=min_np if min_np is not None else min_num_proc,
            max_num_proc=max_np if max_np is not None else max_num_proc,
            elastic_timeout=elastic_timeout,
            reset_limit=reset_limit,
            cooldown_range=kwargs.pop("cooldown_range", None),
            num_proc=kwargs.pop("num_proc", None) or (min_np if min_np is not None else min_num_proc),
            ssh_identity_file=ssh_identity_file,
            nics=nics,
            key=kwargs.pop("key", None) or secret.make_secret_key(),
            start_timeout=timeout.Timeout(timeout_s, message=_START_MESSAGE),
            **kwargs,
        )
        settings.timeout_s = timeout_s  # type: ignore[attr-defined]  # beside what the launcher's settings hold
        return settings

    def __init__(
        self,
        settings: ElasticSettings,
        use_gpu: bool = False,
        cpus_per_slot: int = 1,
        gpus_per_slot: int | None = None,
        env_vars: Mapping[str, Any] | None = None,
        override_discovery: bool = True,
    ) -> None:
        if gpus_per_slot and not use_gpu:
            raise ValueError(f"gpus_per_slot is {gpus_per_slot}, but use_gpu is False: pass use_gpu=True")
        if override_discovery or settings.discovery is None:
            settings.discovery = RayHostDiscovery(use_gpu, cpus_per_slot, gpus_per_slot)
        self.settings = settings
        self._env_vars = dict(env_vars or {})
        self._adapter = ElasticAdapter(
            settings,
            min_workers=settings.min_num_proc or 1,
            max_workers=settings.max_num_proc,
            use_gpu=use_gpu,
            cpus_per_worker=cpus_per_slot,
            gpus_per_worker=gpus_per_slot,
            override_discovery=False,
            reset_limit=settings.reset_limit,
            cooldown_range=settings.cooldown_range,
            elastic_timeout=settings.elastic_timeout,
        )

    def start(self) -> None:
        """Connect to the cluster.

        run() starts the workers.
        """
        self._adapter.start(extra_env_vars=self._env_vars)

    def run(self, worker_fn: Callable[[], Any], callbacks: Sequence[Callable[..., Any]] | None = None) -> list[Any]:
        """Call a function in workers that come and go with the cluster.

        Args:
            worker_fn: The function, which takes no arguments and uses hvd.elastic.run.
            callbacks: Functions that get what the workers pass to ray_logger.log().

        Returns:
            What the workers of the last generation returned, in the order of the ranks.

        Raises:
            RuntimeError: The job could not go on.
        """
        return self._adapter.run(worker_fn, callbacks=callbacks)

    def shutdown(self) -> None:
        """End a job that still runs.

        After run() there is nothing to end.
        """
        self._adapter.shutdown()
