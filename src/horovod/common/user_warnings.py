# SPDX-License-Identifier: Apache-2.0
"""Warnings that point to a line of the user's program, past the libraries that called this package."""

from __future__ import annotations

import sys
import warnings

from horovod.common.exceptions import HorovodWarning

_NOT_THE_USERS = (
    "horovod",
    "torch",
    "keras",
    "contextlib",
    "copy",
    "functools",
    "pickle",
    "accelerate",
    "transformers",
    "lightning",
    "pytorch_lightning",
    "ignite",
)
_said: set[str] = set()


def warn_once(text: str) -> None:
    """Warn, unless this process has given this warning before."""
    if text not in _said:
        _said.add(text)
        warn(text)


def warn(text: str) -> None:
    """Give a HorovodWarning, attributed to the innermost line that is neither a known library's nor this package's."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_USERS:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, HorovodWarning, stacklevel=level)
