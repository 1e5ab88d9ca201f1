# SPDX-License-Identifier: Apache-2.0
"""Requirements of tests: without them a test is skipped, or fails in CI, where no requirement may be missing."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

COMPLETE_VARIABLE = "HOROVOD_TEST_COMPLETE"


def need(absent: Sequence[str], advice: str) -> None:
    """Skip the test if anything is absent; fail instead if HOROVOD_TEST_COMPLETE is set."""
    if not absent:
        return
    text = f"missing here: {', '.join(absent)} ({advice})"
    if os.environ.get(COMPLETE_VARIABLE):
        pytest.fail(text)
    pytest.skip(text)
