# SPDX-License-Identifier: Apache-2.0
"""Lightning's strategy `horovod`: DDP over the horovod backend, under horovodrun, torchrun or Lightning's own launcher.

Importing this registers the name, so that `Trainer(strategy="horovod")` of old scripts runs.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import torch.distributed as dist

import horovod.torch.distributed as horovod_distributed
from horovod.common import topology
from horovod.torch_backend import NAME

__all__ = ["HorovodStrategy"]

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _lightning() -> str:
    """The package that the script uses: both names of Lightning can be installed, and they do not mix."""
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
    return bool(os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR")) and "MASTER_ADDR" not in os.environ


class HorovodEnvironment(_environments.ClusterEnvironment):  # type: ignore[misc, unused-ignore]
    """Ranks that horovodrun started; they need no main address, for they meet at the launcher."""

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
                f"horovodrun started {self._place.size} ranks, but the Trainer counts {size}: pass "
                f"Trainer(devices={self._place.local_size}, num_nodes={self._place.cross_size})"
            )

    def global_rank(self) -> int:
        return self._place.rank

    def set_global_rank(self, rank: int) -> None:
        """The launcher has numbered the ranks."""

    def local_rank(self) -> int:
        return self._place.local_rank

    def node_rank(self) -> int:
        return self._place.cross_rank


class HorovodStrategy(_strategies.DDPStrategy):  # type: ignore[misc, unused-ignore]
    """DDPStrategy with the horovod backend; takes its arguments."""

    strategy_name = NAME

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("process_group_backend", NAME)
        if _under_horovodrun():
            kwargs.setdefault("cluster_environment", HorovodEnvironment())
        super().__init__(*args, **kwargs)

    def setup_environment(self) -> None:
        if isinstance(self.cluster_environment, HorovodEnvironment) and not dist.is_initialized():
            dist.init_process_group(self.process_group_backend, timeout=self._timeout)  # Lightning then takes this one
        super().setup_environment()


_strategies.StrategyRegistry.register(
    NAME, HorovodStrategy, description=f"DDP over {horovod_distributed.__name__}", override=True
)
