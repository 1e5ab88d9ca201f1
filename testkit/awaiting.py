# SPDX-License-Identifier: Apache-2.0
"""Polling for what another thread or process does, with a guard against hangs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from testkit.speed import patience

_LOOK_S = 0.01

Found = TypeVar("Found")


def await_that(is_so: Callable[[], Found], limit_s: float = 30, account: Callable[[], object] = str) -> Found:
    """Wait until the condition holds, and return what it returned.

    Raise AssertionError with the result of `account` if that takes longer than the limit, which is scaled for this
    machine.
    """
    limit_s = patience(limit_s)
    give_up = time.monotonic() + limit_s
    while not (found := is_so()):
        assert time.monotonic() < give_up, f"it did not happen within {limit_s:g} s\n{account()}"
        time.sleep(_LOOK_S)
    return found
