# SPDX-License-Identifier: Apache-2.0
"""Lightning's strategy `horovod`: DDP over the horovod backend, with horovodrun, torchrun or Lightning's own launcher.

Importing this module registers the name, so that old scripts with `Trainer(strategy="horovod")` run.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import torch
import torch.distributed as dist

import horovod.torch.distributed as horovod_distributed
from horovod.common import topology, torchrun_variables
from horovod.torch_backend_names import NAME

__all__ = ["HorovodStrategy"]

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _lightning() -> str:
    """Return the name of the Lightning package that the script uses; two can be installed, and they do not mix."""
    for package in (*(name for name in _PACKAGES if name in sys.modules), *_PACKAGES):
        try:
            importlib.import_module(package)
        except ModuleNotFoundError:
            continue
        return package
    raise ImportError("horovod.torch.distributed.lightning needs Lightning: pip install lightning")


_package = _lightning()
_strategies: Any = importlib.import_module(_package + ".strategies")
_environments: Any = importlib.import_module(_package + ".plugins.environments")


def _under_horovodrun() -> bool:
    if not os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR"):
        return False
    return "MASTER_ADDR" not in os.environ or torchrun_variables.place_is_ours(os.environ)


class HorovodEnvironment(_environments.ClusterEnvironment):  # type: ignore[misc, unused-ignore]
    """Environment of ranks that horovodrun started; they meet at the launcher and need no main address."""

    def __init__(self) -> None:
        super().__init__()
        self._place = topology.discover(os.environ)

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"]

    @property
    def main_port(self) -> int:
        return topology.integer_of("HOROVOD_GLOO_RENDEZVOUS_PORT", os.environ)

    @staticmethod
    def detect() -> bool:
        return _under_horovodrun()

    def world_size(self) -> int:
        return self._place.size

    def set_world_size(self, size: int) -> None:
        if size != self._place.size:
            raise ValueError(
                f"horovodrun started {self._place.size} ranks, but the Trainer counts {size}: leave out devices and "
                f"num_nodes, or pass Trainer(devices={self._place.local_size}, num_nodes={self._place.cross_size})"
            )

    @property
    def place(self) -> topology.Topology:
        return self._place

    def global_rank(self) -> int:
        return self._place.rank

    def set_global_rank(self, rank: int) -> None:
        """Ignore the rank, because the launcher has already numbered the ranks."""

    def local_rank(self) -> int:
        return self._place.local_rank

    def node_rank(self) -> int:
        return self._place.cross_rank


class HorovodStrategy(_strategies.DDPStrategy):  # type: ignore[misc, unused-ignore]
    """DDPStrategy with the horovod backend; takes DDPStrategy's arguments.

    Under horovodrun a Trainer with `devices` and `num_nodes` missing or 1 trains on the ranks that were started, as
    Horovod's own strategy did.
    """

    strategy_name = NAME

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("process_group_backend", NAME)
        if _under_horovodrun():
            kwargs.setdefault("cluster_environment", HorovodEnvironment())
        super().__init__(*args, **kwargs)

    def _launched(self) -> topology.Topology | None:
        environment = self.cluster_environment
        return environment.place if isinstance(environment, HorovodEnvironment) else None

    @property
    def parallel_devices(self) -> list[torch.device] | None:
        devices: list[torch.device] | None = self._parallel_devices
        place = self._launched() if devices is not None and len(devices) == 1 else None
        if place is None or devices is None:
            return devices
        kind = devices[0].type
        if kind == "cpu":
            return [torch.device(kind)] * place.local_size
        gpus = max(1, torch.cuda.device_count()) if kind == "cuda" else place.local_size
        return [torch.device(kind, it % gpus) for it in range(place.local_size)]  # ranks may share a GPU

    @parallel_devices.setter
    def parallel_devices(self, devices: list[torch.device] | None) -> None:
        self._parallel_devices = devices

    @property
    def num_nodes(self) -> int:
        place = self._launched() if self._num_nodes == 1 else None
        return int(self._num_nodes) if place is None else place.cross_size

    @num_nodes.setter
    def num_nodes(self, number: int) -> None:
        self._num_nodes = number

    def setup_environment(self) -> None:
        if isinstance(self.cluster_environment, HorovodEnvironment) and not dist.is_initialized():
            dist.init_process_group(self.process_group_backend, timeout=self._timeout)  # Lightning uses this group
        super().setup_environment()


_strategies.StrategyRegistry.register(
    NAME, HorovodStrategy, description=f"DDP over {horovod_distributed.__name__}", override=True
)
