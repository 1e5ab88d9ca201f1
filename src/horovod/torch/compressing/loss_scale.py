# SPDX-License-Identifier: Apache-2.0
"""The factor by which a GradScaler has multiplied the loss, which what is kept of gradients has to follow."""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any

_MOST_FRAMES = 6  # between a GradScaler's step() and the attribute of the optimizer that it asks for


class LossScale:
    """The scale of one optimizer's gradients: that of the GradScaler that makes its steps, or 1.

    GradScaler.step(optimizer) asks the optimizer for an attribute before it decides whether the step is made. The
    optimizer then calls `asked`, and calls `stepped` from its own step().
    """

    def __init__(self) -> None:
        self._scaler: weakref.ref[Any] | None = None
        self._was_asked = False
        self._is_known = False
        self.at_first = 1.0  # when the scaler, or that there is none, became known

    def current(self) -> float | None:
        """Return the scale of the gradients under way; None before the first step."""
        if not self._is_known:
            return None
        scaler = None if self._scaler is None else self._scaler()
        return 1.0 if scaler is None else float(scaler.get_scale())

    def asked(self) -> None:
        """Remember the GradScaler that asks for an attribute of the optimizer, if one does."""
        scaler = _calling_scaler()
        if scaler is not None:
            self._was_asked = True
            self._use(weakref.ref(scaler))

    def stepped(self) -> None:
        """Note a step of the optimizer: without a scaler if none has asked before."""
        if not self._was_asked:
            self._use(None)
        self._was_asked = False

    def _use(self, scaler: weakref.ref[Any] | None) -> None:
        self._scaler = scaler
        if not self._is_known:
            self._is_known = True
            self.at_first = self.current() or 1.0


def _calling_scaler() -> Any:
    """Return the GradScaler in whose step() this thread is, or None."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        if frame.f_code.co_name == "step":
            caller = frame.f_locals.get("self")
            if callable(getattr(caller, "get_scale", None)) and callable(getattr(caller, "unscale_", None)):
                return caller
        frame = frame.f_back
    return None
