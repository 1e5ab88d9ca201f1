# SPDX-License-Identifier: Apache-2.0
"""Marker for cases that only `make test-long` runs, because a faster case would almost always fail with them."""

from __future__ import annotations

from typing import Any

import pytest


def in_long(*values: Any) -> Any:
    """Return a case for `pytest.mark.parametrize` with the marker `slow`."""
    return pytest.param(*values, marks=pytest.mark.slow)
