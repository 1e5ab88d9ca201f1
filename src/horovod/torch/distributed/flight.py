# SPDX-License-Identifier: Apache-2.0
"""Operation in the engine: its handles, the memory that it uses, and the steps that follow in Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import torch

from horovod._engine import EngineError, moved_text
from horovod.torch.distributed.places import Place
from horovod.torch.in_flight import watch

if TYPE_CHECKING:
    from horovod.torch.distributed.channel import Channel

Finish = Callable[[Sequence[int]], None]


class Flight:
    """Operation from its submission until its results are in place. Only one thread uses it at a time."""

    def __init__(
        self, channel: Channel, handles: Sequence[int], place: Place, keep: object, finish: Finish | None, watched: str
    ) -> None:
        """Take over operations that the engine has begun.

        `watched` is the operation's name if the caller runs on meanwhile and may resize its tensors, else empty.
        """
        self._channel = channel
        self._handles = handles
        self._place = place
        self._keep = keep  # the engine reads and writes this memory until the handles are done
        self._finish = finish
        self._watched = watched
        self._lies_still = watch(_tensors_in(keep)) if watched else _nothing_moves
        self.error: EngineError | None = None

    def then(self, finish: Callable[[], None], keep: object) -> None:
        """Append a step after the last one, and keep alive the tensors that it uses."""
        before = self._finish
        self._keep = (self._keep, keep)

        def both(handles: Sequence[int]) -> None:
            if before is not None:
                before(handles)
            finish()

        self._finish = both

    def wait(self, limit_s: float) -> bool:
        """Return True if the operation ends within `limit_s`, successfully or with an `error`."""
        until = time.monotonic() + limit_s
        for handle in self._handles:
            try:
                if not self._channel.world.wait(handle, max(0.0, until - time.monotonic())):
                    return False
            except EngineError as error:
                self.error = self.error or error
        return True

    def land(self) -> None:
        """Run the last steps after the engine is done. Raise ValueError if a tensor has lost its memory meanwhile."""
        if self.error is None:
            if not self._lies_still():
                raise ValueError(moved_text(self._watched))
            self._place.order(self._channel.world)
            if self._finish is not None:
                with torch.no_grad(), self._place.entered():
                    self._finish(self._handles)
                    self._place.has_more()

    def release(self, followed: bool) -> None:
        """Release handles and memory, once. `followed` means that the caller's stream waits for the operation, too."""
        handles, self._handles = self._handles, ()
        if handles and not (followed and self._place.keeps_memory()):
            self._place.outlive(_tensors_in(self._keep))
        for handle in handles:
            self._channel.world.release(handle)
        self._keep = self._finish = None
        self._lies_still = _nothing_moves

    def land_alone(self) -> bool:
        """Complete an operation whose caller dropped it. Return True if it has ended."""
        if not self.wait(0.0):
            return False
        with suppress(Exception):  # no caller wants the outcome
            self.land()
        self.release(followed=False)
        return True


def _nothing_moves() -> bool:
    return True


def _tensors_in(kept: object) -> Iterator[torch.Tensor]:
    if isinstance(kept, torch.Tensor):
        yield kept
    elif isinstance(kept, (list, tuple)):
        for one in kept:
            yield from _tensors_in(one)
