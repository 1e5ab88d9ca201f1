# SPDX-License-Identifier: Apache-2.0
"""Factor by which a GradScaler has multiplied the loss. Residuals and other kept tensors have to be scaled alike."""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any

_MOST_FRAMES = 6  # limit on the stack frames between a GradScaler's step() and the attribute that it reads


class LossScale:
    """Scale of one optimizer's gradients: that of the GradScaler that calls its step(), or 1.

    GradScaler.step(optimizer) reads an attribute of the optimizer before it decides whether to make the step. The
    optimizer then calls `asked`, and its own step() calls `stepped`.
    """

    def __init__(self) -> None:
        self._scaler: weakref.ref[Any] | None = None
        self._was_asked = False
        self._is_known = False
        self.at_first = 1.0  # scale at the time when it became known which scaler is used, if any

    def current(self) -> float | None:
        """Return the scale of the current gradients; None before the first step."""
        if not self._is_known:
            return None
        scaler = None if self._scaler is None else self._scaler()
        return 1.0 if scaler is None else float(scaler.get_scale())

    def asked(self) -> None:
        """Remember the GradScaler that is reading an attribute of the optimizer, if the caller is one."""
        scaler = _calling_scaler()
        if scaler is not None:
            self._was_asked = True
            self._use(weakref.ref(scaler))

    def stepped(self) -> None:
        """Record a step of the optimizer. If no scaler has read the attribute before, the optimizer has none."""
        if not self._was_asked:
            self._use(None)
        self._was_asked = False

    def _use(self, scaler: weakref.ref[Any] | None) -> None:
        self._scaler = scaler
        if not self._is_known:
            self._is_known = True
            self.at_first = self.current() or 1.0


def _calling_scaler() -> Any:
    """Return the GradScaler whose step() is running on this thread, or None."""
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
