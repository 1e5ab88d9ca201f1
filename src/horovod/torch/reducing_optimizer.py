# SPDX-License-Identifier: Apache-2.0
"""Methods that DistributedOptimizer() adds to an optimizer: they reduce gradients before each step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from horovod.common.exceptions import HorovodWarning
from horovod.torch.compressing.hook import CompressionHook
from horovod.torch.gradients.reducer import GradientReducer
from horovod.torch.wrapping import WrappedOptimizer

Tensor = torch.Tensor
Closure = Callable[[], Any]


class _DistributedOptimizer(WrappedOptimizer):
    """Mixin that DistributedOptimizer() adds to the user's optimizer class."""

    _reducer: GradientReducer | None  # None if this rank has no other rank to reduce with
    _comm_hook: Any = None  # the hook given to hvd.register_comm_hook()
    _should_synchronize: bool
    _synchronized: bool

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Accumulate gradients over this many backward passes before they are reduced."""
        check_passes(passes)
        self.backward_passes_per_step = passes
        if self._reducer is not None:
            self._reducer.set_passes(passes)

    def synchronize(self) -> None:
        """Complete this round's gradients on all ranks, including those that no backward pass has made due."""
        if self._reducer is not None:
            self._reducer.finish_round()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Make step() inside this block use gradients as they are; for use after synchronize()."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Closure | None = None) -> Any:
        """Complete the gradients, then make the wrapped class's step."""
        self._count_step()
        if closure is not None:
            loss = super().step(self._completing(closure))
            self._has_stepped()
            return loss
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(): gradients are reduced twice. Call step() inside `with "
                    "optimizer.skip_synchronize():`, or leave out synchronize().",
                    HorovodWarning,
                    stacklevel=2,
                )
            self.synchronize()
        self._synchronized = False
        result: Any = super().step()
        self._has_stepped()
        return result

    # Keep Optimizer.load_state_dict() from wrapping step(), because the wrapped class already runs step hooks.
    step.hooked = True  # type: ignore[attr-defined]

    @property
    def comm_hook(self) -> Any:
        """Communication hook, which holds the state of a `compression` with arguments; None without one."""
        return self._comm_hook

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Value of the wrapped class; a GradScaler reads it before each step, even before one that it skips."""
        if isinstance(self._comm_hook, CompressionHook):
            self._comm_hook.loss_scale.asked()
        return bool(vars(self).get("_step_supports_amp_scaling", False))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        vars(self)["_step_supports_amp_scaling"] = value

    def _has_stepped(self) -> None:
        if isinstance(self._comm_hook, CompressionHook):
            self._comm_hook.loss_scale.stepped()
        if self._reducer is not None:
            self._reducer.stepped(not self._should_synchronize)

    def _completing(self, closure: Closure) -> Closure:
        if self._reducer is not None and self._reducer.busy:
            self._reducer.finish_round()

        def completed() -> Any:
            with torch.enable_grad():
                loss = closure()
            if self._reducer is not None and self._should_synchronize:
                self._reducer.finish_round()
            return loss

        return completed

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients as torch does; raise AssertionError while reductions are in flight."""
        if self._reducer is not None:
            if self._reducer.busy:
                raise AssertionError(
                    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                    "optimizer.synchronize(): the gradients are being reduced at this moment."
                )
            self._reducer.begin_anew()
        self._synchronized = False  # the reduced gradients are gone
        super().zero_grad(set_to_none)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load state and options, and drop gradients that are being reduced."""
        self._forget_round()
        super().load_state_dict(*args, **kwargs)

    def _forget_round(self) -> None:
        if self._reducer is not None:
            self._reducer.restart()
        self._synchronized = False

    def _watch(self, name: str, parameter: Tensor) -> None:
        if self._reducer is not None:
            self._reducer.watch(name, parameter)

    @staticmethod
    def find_duplicates(lst: Iterable[Any]) -> set[Any]:
        """Return the elements that a list holds more than once."""
        seen: set[Any] = set()
        return {element for element in lst if element in seen or seen.add(element)}  # type: ignore[func-returns-value]


def check_passes(passes: int) -> None:
    if passes <= 0:
        raise ValueError(f"backward_passes_per_step must be at least 1, not {passes}")
