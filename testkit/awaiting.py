# SPDX-License-Identifier: Apache-2.0
"""Waiting for something that another thread or process does, with a guard against hangs."""

from __future__ import annotations

import time
from collections.abc import Callable

from testkit.speed import patience

_LOOK_S = 0.01


def await_that(is_so: Callable[[], object], limit_s: float = 30) -> None:
    """Wait until the condition holds. AssertionError if that takes longer than the limit, scaled for this machine."""
    give_up = time.monotonic() + patience(limit_s)
    while not is_so():
        assert time.monotonic() < give_up, f"it did not happen within {patience(limit_s):g} s"
        time.sleep(_LOOK_S)
