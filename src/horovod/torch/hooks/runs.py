# SPDX-License-Identifier: Apache-2.0
"""Run of a communication hook on one bucket: a generator, and the collective that it waits for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from horovod.torch.hooks.bucket import Bucket, CommHook, Running
from horovod.torch.hooks.collectives import Handle, as_handle


class HookRun:
    """Run of a hook's generator. Only wait() blocks. A failure is stored in `error` instead of being raised."""

    def __init__(self, hook: CommHook, bucket: Bucket) -> None:
        self.bucket = bucket
        self.error: Exception | None = None
        self.result: torch.Tensor | None = None
        self._generator: Running | None = None
        self._handle: Handle | None = None
        self._step(partial(self._begin, hook))

    @property
    def is_over(self) -> bool:
        return self.result is not None or self.error is not None

    def can_advance(self) -> bool:
        """Return True if the collective that the hook waits for has completed, or if polling it raises an error."""
        if self._handle is None:
            return False
        try:
            return self._handle.is_complete()
        except Exception:
            return True  # advance() gets the error from result() and throws it into the hook

    def advance(self) -> None:
        """Send the hook the results of completed collectives, until it waits for one that has not completed."""
        while self._handle is not None and self._generator is not None and self.can_advance():
            handle, self._handle = self._handle, None
            try:
                step: Callable[[], Any] = partial(self._generator.send, handle.result())
            except Exception as error:
                step = partial(self._generator.throw, error)
            self._step(step)

    def wait(self, limit_s: float) -> bool:
        """Wait for the collective for at most `limit_s`. Return True if the hook can continue."""
        return self._handle is None or self._handle.wait(limit_s)

    def abandon(self) -> None:
        """End the hook. The engine may still use its tensors."""
        generator, self._generator = self._generator, None
        self._handle = None
        if generator is not None:
            with suppress(Exception):  # another failure, which ended the round, is already being raised
                generator.close()
        self.bucket.abandon()

    def _begin(self, hook: CommHook) -> Any:
        generator = hook(self.bucket)
        if not hasattr(generator, "send"):
            raise TypeError(f"it returned {type(generator).__name__}; write a generator function, which has a yield")
        self._generator = generator
        return next(generator)

    def _step(self, step: Callable[[], Any]) -> None:
        try:
            with torch.no_grad():
                self._handle = as_handle(step())
        except StopIteration as end:
            try:
                self.result = self._checked(end.value)
            except Exception as error:
                self.error = error
        except Exception as error:
            self.error = error
        if self.is_over:
            self._generator = None
            self.bucket.abandon()

    def _checked(self, result: Any) -> torch.Tensor:
        wanted = self.bucket.tensor
        if not isinstance(result, torch.Tensor):
            raise TypeError(f"it returned {type(result).__name__}; return the reduced bucket, a tensor")
        if result.shape != wanted.shape or result.device != wanted.device:
            raise ValueError(
                f"it returned a tensor of shape {tuple(result.shape)} on {result.device}; return one of shape "
                f"{tuple(wanted.shape)} on {wanted.device}"
            )
        return result
