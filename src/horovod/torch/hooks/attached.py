# SPDX-License-Identifier: Apache-2.0
"""Communication hook of one optimizer, its buckets, and the agreement of the ranks on both."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch

from horovod.common.context import default_context
from horovod.common.exceptions import HorovodMismatchError
from horovod.torch.gradients.conversations import Conversation, ask
from horovod.torch.gradients.gradient import Gradient, Gradients, Reduction
from horovod.torch.gradients.known_optimizers import KnownOptimizer
from horovod.torch.gradients.rounds import Place, Reduce
from horovod.torch.hooks.bucket import Bucket, CommHook
from horovod.torch.hooks.comparison import Side, difference, layout_to_take_over, share
from horovod.torch.hooks.flat import FlatBucket
from horovod.torch.hooks.layout import DEFAULT_BYTES, Described, Layout, append_buckets, make_layout, placed
from horovod.torch.hooks.running import BucketRuns

_TOPIC = "hooks."
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_SPARSE = (
    "The gradient of {name!r} is sparse. The communication hook {hook!r} reduces dense gradients only: use "
    "hvd.DistributedOptimizer(sparse_as_dense=True), or leave out sparse=True where the module is made."
)


class AttachedHook:
    """Communication hook of an optimizer, if any, with the facts about it that the optimizer's rounds need."""

    def __init__(self, optimizer: KnownOptimizer, gradients: Gradients, reduction: Reduction) -> None:
        self.hook: CommHook | None = None
        self.checksum = 0  # covers hook and layout; 0 without a hook
        self.has_exchanged = False  # True if this optimizer has sent the checksum to other ranks
        self._optimizer = optimizer
        self._gradients = gradients
        self._call = reduction.call
        self._travels_dense = reduction.sparse_as_dense  # sparse gradients are made dense for the reduction
        self._runs = BucketRuns(optimizer, reduction.call)
        self._side = Side(None)
        self._limit_bytes = DEFAULT_BYTES
        self._groups: list[list[str]] = []  # names of the parameters in each of the user's groups
        self._placed: set[str] = set()  # names of the parameters that have a place in a bucket

    def attach(self, hook: CommHook, limit_bytes: int) -> None:
        """Use a hook from now on. Put the trained parameters into buckets, the user's groups first."""
        if self.hook is None:
            self._groups = [[it.name for it in group.gradients] for group in self._gradients.groups]
        trained = [it for it in self._gradients if it.parameter.requires_grad]
        self._limit_bytes = limit_bytes
        self.hook = hook
        self._take(describe(hook), make_layout(_described(trained), self._groups, limit_bytes))

    @property
    def leaves_gradients(self) -> bool:
        """Return True if the hook leaves the reduction to the engine, as compression does on one host by default."""
        leaves: Callable[[], bool] | None = getattr(self.hook, "leaves_gradients", None)
        return leaves is not None and leaves()

    @property
    def _is_idle(self) -> bool:
        """Return True if this rank is alone, and the hook does nothing then. DGC applies its momentum also then."""
        return self._call.process_set.size() == 1 and not getattr(self.hook, "acts_alone", False)

    def enter_era(self) -> None:
        """Make ranks agree again in the new era, because new ranks may have other layouts or be on other hosts."""
        self._side = self._side._replace(is_settled=False)
        self._use_buckets()

    @property
    def lacks_places(self) -> bool:
        """Return True if a gradient may be computed for which there is no bucket, so that ranks must append buckets."""
        return self.hook is not None and any(
            it.hook is not None and it.name not in self._placed for it in self._gradients
        )

    def settle(self, decision: Reduce, place: Place) -> Conversation:
        """If ranks have different hooks or layouts, find out what differs. Then append buckets for new parameters."""
        if decision.hooks_differ:
            yield from self._compare(place)
        if self.hook is None:
            return
        if decision.sparse and not self._travels_dense:
            raise ValueError(_SPARSE.format(name=self._gradients[decision.sparse[0]].name, hook=self._side.hook))
        new = [it for it in self._gradients if it.name not in self._placed and decision.trained[it.number]]
        if new:
            new.sort(key=lambda it: it.name)  # ranks may have listed the parameters in different orders
            layout = append_buckets(self._side.layout, _described(new), self._limit_bytes)
            self._take(self._side.hook, layout, is_settled=True)
        self._side = self._side._replace(is_settled=True)

    def start(self, flat: FlatBucket, gradients: list[Gradient]) -> Callable[[list[torch.Tensor]], None]:
        """Begin to reduce a bucket of these gradients. Return a function that copies the result into their tensors."""
        if self.hook is None or self._is_idle:
            return lambda grads: None
        tensor = flat.fill(gradients)
        is_last = flat.index == len(self._side.layout) - 1
        run = self._runs.start(
            self.hook, flat, lambda name_of: Bucket(flat.index, is_last, tensor, flat.views(), self._call, name_of)
        )

        def put_in_place(grads: list[torch.Tensor]) -> None:
            if run.result is not None:
                flat.scatter(run.result, gradients, grads)
                self._runs.landed(flat.index)

        return put_in_place

    def complete(self, agreed: Reduce, place: Place) -> Conversation:
        """Drive the hook until all buckets that ranks have agreed on are reduced."""
        if self.hook is not None and any(agreed.wanted) and not (self._is_idle or self.leaves_gradients):
            yield from self._runs.complete(place, repr(self._side.hook))

    def clear(self) -> None:
        """End all runs of the hook."""
        self._runs.clear()

    def _compare(self, place: Place) -> Conversation:
        ranks = self._optimizer.process_set.ranks or [0]
        index = ranks.index(default_context.topology.rank)
        texts = yield from ask(share(self._side.packed(), index, len(ranks)), place, self._optimizer, _TOPIC)
        sides = [Side.unpacked(text) if text else None for text in texts]
        layout = layout_to_take_over(sides)
        if layout is None:
            raise HorovodMismatchError(difference(ranks, sides))
        self._take(self._side.hook, layout)

    def _take(self, text: str | None, layout: Layout, is_settled: bool = False) -> None:
        self._side = Side(text, layout, is_settled)
        self.checksum = self._side.checksum()
        self._placed = placed(layout)
        self._use_buckets()

    def _use_buckets(self) -> None:
        """Put gradients into the buckets of the layout, unless the hook leaves them to the engine.

        Without buckets they are reduced as without a hook. Once there are buckets they stay, as the native table cannot
        take gradients back.
        """
        if self.hook is not None and not self.leaves_gradients:
            self._gradients.make_buckets(self._side.layout)
            self._optimizer.use_hook()


def describe(hook: Any) -> str:
    """Return a hook's name and arguments as a text, which ranks compare.

    The text is the result of hook.describe() if the hook has this method. The text of a partial function contains its
    arguments, as does that of an object whose repr() shows them, such as a dataclass.
    """
    own = getattr(hook, "describe", None)
    if callable(own):
        return str(own())
    if isinstance(hook, functools.partial):
        given = [*map(repr, hook.args), *(f"{name}={value!r}" for name, value in sorted(hook.keywords.items()))]
        return _ADDRESS.sub("", f"{describe(hook.func)}({', '.join(given)})")
    name = getattr(hook, "__qualname__", None)
    if name is not None:
        owner = getattr(hook, "__self__", None)
        return str(name) if owner is None else f"{describe(owner)}.{hook.__name__}"
    kind: Any = type(hook)
    if kind.__repr__ is object.__repr__:
        return str(kind.__qualname__)
    return _ADDRESS.sub("", repr(hook))


def check_dtype(name: str, parameter: torch.Tensor) -> None:
    """Raise ValueError if a bucket cannot hold the parameter's gradient."""
    if not parameter.dtype.is_floating_point:
        raise ValueError(
            f"Communication hooks and compression= support floating-point parameters; {name!r} is {parameter.dtype}"
        )


def _described(gradients: list[Gradient]) -> list[Described]:
    for it in gradients:
        check_dtype(it.name, it.parameter)
    return [
        Described(
            it.name,
            it.parameter.numel(),
            it.parameter.element_size(),
            str(it.parameter.dtype).removeprefix("torch."),
            it.parameter.device.type,
            str(it.parameter.device),
        )
        for it in gradients
    ]
