# SPDX-License-Identifier: Apache-2.0
"""In-place sum of gradients over the ranks of a set. The optimizer's rescale_grad turns the sum into a mean."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Any

from horovod.common.context import default_context
from horovod.common.exceptions import HorovodMismatchError
from horovod.common.group_contents import CHECKSUM_DIGITS, GradientOf, described
from horovod.common.objects import allgather_object
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.supported_methods import method_in
from horovod.common.util import split_list
from horovod.mxnet.adapter import NDArray
from horovod.mxnet.compression import Compression
from horovod.mxnet.mpi_ops import Sum, allreduce_, grouped_allreduce_

Named = list[tuple[str, int, NDArray]]  # name, priority, gradient


class _Names:
    """Names under which this process has reduced gradients in each process set of this world.

    Two trainers without a prefix have equal names, and their gradients may be in flight together.
    """

    def __init__(self) -> None:
        self._taken: dict[tuple[int, str], Reducer] = {}
        # For each set and digest: one list for each reducer, with the `values` of every rank.
        self._begun: dict[tuple[int, str], list[list[int]]] = {}
        default_context.observe(self)

    def bound(self, process_set: ProcessSet) -> None:
        if process_set is global_process_set:  # a new world has begun, and some of its ranks may be new
            self._taken, self._begun = {}, {}

    def unbound(self, process_set: ProcessSet) -> None:
        pass

    def agree(
        self, reducer: Reducer, process_set: ProcessSet, names: list[str], contents: str, values: int, is_first: bool
    ) -> str:
        """Compare contents with the other ranks, and return the suffix that keeps this reducer's names unique.

        Every rank of the set calls this when one of its reducers has gradients under these names for the first time.
        `values` is a checksum of the parameters, or 0. It distinguishes networks of equal form.
        """
        number = process_set.process_set_id or 0
        digest = contents[-CHECKSUM_DIGITS:]
        collides = is_first and any(self._taken.get((number, name), reducer) is not reducer for name in names)
        everyone = allgather_object((contents, collides, values), name="mxnet.gradients", process_set=process_set)
        for rank, (theirs, _, _) in zip(process_set.ranks or (), everyone, strict=True):
            if theirs != contents:
                raise _mismatch(f"reduces {contents}, but rank {rank} reduces {theirs}")
        for name in names:
            self._taken.setdefault((number, name), reducer)
        if not is_first:
            return ""
        begun = self._begun.setdefault((number, digest), [])
        now = [theirs for _, _, theirs in everyone]
        if any(
            now[one] != now[other] and (now[one], now[other]) == (earlier[other], earlier[one])
            for earlier in begun
            for one in range(len(now))
            for other in range(one)
        ):
            raise _mismatch(
                f"has used two trainers with equal parameters ({contents}) in another order than other ranks"
            )
        begun.append(now)
        return f".{digest}.{len(begun)}" if any(theirs for _, theirs, _ in everyone) else ""


def _mismatch(difference: str) -> HorovodMismatchError:
    return HorovodMismatchError(
        f"Mismatched trainers or optimizers: this rank ({default_context.topology.rank}) {difference}. Every rank must "
        "use its trainers in the same order, with the same parameters and the same grad_req"
    )


_names = _Names()


class Reducer:
    """Settings and names with which an optimizer or a trainer reduces its gradients.

    `scale` turns the sum into the mean: rescale_grad is multiplied by it, which costs nothing.
    """

    def __init__(
        self, predivide: float, num_groups: int, process_set: ProcessSet, compression: Any = Compression.none
    ) -> None:
        method_in(compression, (), "hvd.DistributedTrainer of MXNet")
        if predivide <= 0:
            raise ValueError(f"gradient_predivide_factor must be a positive number, not {predivide}")
        self._prescale = 1.0 / predivide
        self._num_groups = num_groups
        self._set = process_set
        self._compression = compression
        size = process_set.size()
        if size is None:
            raise ValueError(f"{process_set} is not registered: call hvd.init() first")
        self.active = size > 1 and bool(process_set.included())
        self.scale = predivide / size if self.active else 1.0
        self._world: Any = None
        self._agreed: set[tuple[str, ...]] = set()
        self._suffix = ""

    def reduce(self, named: Named, parameters: Sequence[Any] = ()) -> None:
        """Reduce gradients in place.

        Earlier layers have higher priority, because the next forward pass needs them first.

        Args:
            named: Name, priority and gradient of each parameter.
            parameters: gluon's parameters, if a trainer calls this.
        """
        if not self.active or not named:
            return
        self._agree(named, parameters)
        compressed = [self._compression.compress(gradient) for _, _, gradient in named]
        sent = [
            (f"{name}{self._suffix}", priority, array)
            for (name, priority, _), (array, _) in zip(named, compressed, strict=True)
        ]
        for group in split_list(sent, min(self._num_groups, len(sent))) if self._num_groups > 0 else []:
            names, priorities, arrays = zip(*group, strict=True)
            name = f"{names[0]}:{names[-1]}"
            grouped_allreduce_(list(arrays), name=name, priority=priorities[0], **self._options())
        for name, priority, array in sent if self._num_groups <= 0 else []:
            allreduce_(array, name=name, priority=priority, **self._options())
        for (_, _, gradient), (array, ctx) in zip(named, compressed, strict=True):
            if array is not gradient:
                self._compression.decompress(array, ctx).copyto(gradient)

    def _agree(self, named: Named, parameters: Sequence[Any]) -> None:
        """Compare with the other ranks what is reduced under which names, once for each list of names."""
        world = self._set.membership.world if self._set.membership else None
        if world is not self._world:
            self._world, self._suffix = world, ""
            self._agreed.clear()
        names = [name for name, _, _ in named]
        if tuple(names) in self._agreed:
            return
        # Leave out digits, because MXNet numbers the layers in each process, and ranks may have made different layers
        # before.
        shown = [re.sub(r"\d+", "", parameter.name) for parameter in parameters] or names
        contents = described(
            [
                GradientOf(f"{one} (number {name})" if parameters else one, str(gradient.shape))
                for one, (name, _, gradient) in zip(shown, named, strict=True)
            ]
        )
        is_first = not self._agreed
        values = zlib.crc32(b"".join(one.data().asnumpy().tobytes() for one in parameters)) if is_first else 0
        suffix = _names.agree(self, self._set, names, contents, values, is_first)
        self._suffix = suffix or self._suffix
        self._agreed.add(tuple(names))

    def _options(self) -> dict[str, Any]:
        return {"op": Sum, "prescale_factor": self._prescale, "process_set": self._set}
