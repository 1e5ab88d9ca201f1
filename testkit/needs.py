# SPDX-License-Identifier: Apache-2.0
"""Tests that need what a machine may not have: they are skipped there, and fail where nothing may be missing (CI)."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

COMPLETE_VARIABLE = "HOROVOD_TEST_COMPLETE"


def need(absent: Sequence[str], advice: str) -> None:
    """Skip or fail unless nothing is absent."""
    if not absent:
        return
    text = f"missing here: {', '.join(absent)} ({advice})"
    if os.environ.get(COMPLETE_VARIABLE):
        pytest.fail(text)
    pytest.skip(text)
