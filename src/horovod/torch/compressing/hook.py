# SPDX-License-Identifier: Apache-2.0
"""Hook that compresses an optimizer's gradients by one method, with the state that it keeps for each bucket."""

from __future__ import annotations

import time
from typing import Any

from horovod.common.compression_methods import CompressionMethod, Dgc, Int8, OneBit, PowerSGD, TopK
from horovod.common.context import default_context
from horovod.common.log import logger
from horovod.torch.compressing.coded import CodedPart
from horovod.torch.compressing.dgc import DgcPart
from horovod.torch.compressing.loss_scale import LossScale
from horovod.torch.compressing.parts import BucketPart
from horovod.torch.compressing.power import PowerPart
from horovod.torch.hooks.bucket import Bucket, Running


class CompressionHook:
    """Communication hook for one compression method. Residuals differ between ranks, so each rank saves its state."""

    def __init__(self, method: CompressionMethod) -> None:
        if not isinstance(method, Int8 | OneBit | TopK | PowerSGD | Dgc):
            raise ValueError(f"hvd.DistributedOptimizer does not support the compression {method.describe()}")
        self.method = method
        self.loss_scale = LossScale()
        self._parts: dict[int, BucketPart] = {}
        self._told: object = None  # the world for which the log says that nothing is compressed

    @property
    def acts_alone(self) -> bool:
        """Return True if the hook changes gradients even if no other rank takes part: DGC applies its momentum."""
        return isinstance(self.method, Dgc)

    def describe(self) -> str:
        """Return the method and its arguments as a text, which ranks compare."""
        return self.method.describe()

    def __call__(self, bucket: Bucket) -> Running:
        """Return the generator of a bucket's exchange."""
        return self._part(bucket.index).exchange(bucket)

    def leaves_gradients(self) -> bool:
        """Return True if the engine reduces the gradients as without a hook, because no data leaves a host.

        The answer is equal on all ranks. It is False for DGC, which applies its own momentum even on one host.
        """
        topology = default_context.topology
        leaves = self.method.scope == "host" and topology.on_one_host and not isinstance(self.method, Dgc)
        if leaves and self._told is not default_context.world:
            self._told = default_context.world
            now_ns = time.monotonic_ns()
            default_context.show(f"{self.method.name}: dense-on-one-host", now_ns, now_ns)
            if topology.rank == 0:
                logger.info("%s, scope='host': compresses nothing, because all ranks are on one host", self.method.name)
        return leaves

    def state_dict(self) -> dict[str, Any]:
        """Return copies of this rank's state. Residuals differ between ranks, so save it on every rank."""
        buckets = {index: part.state() for index, part in self._parts.items()}
        return {"method": self.describe(), "buckets": buckets}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned on this rank; raise ValueError if it belongs to another method."""
        if state["method"] != self.describe():
            raise ValueError(f"The state was saved with {state['method']}, but this hook is {self.describe()}")
        saved = {int(index): it for index, it in state["buckets"].items()}
        for index in {*self._parts, *saved}:
            self._part(index).load(saved.get(index, {}))

    def make_part(self) -> BucketPart:
        """Return the initial state of a bucket."""
        if isinstance(self.method, PowerSGD):
            return PowerPart(self.method, self.loss_scale)
        if isinstance(self.method, Dgc):
            return DgcPart(self.method, self.loss_scale)
        return CodedPart(self.method, self.loss_scale)

    def _part(self, index: int) -> BucketPart:
        if index not in self._parts:
            self._parts[index] = self.make_part()
        return self._parts[index]
