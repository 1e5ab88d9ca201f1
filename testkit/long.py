# SPDX-License-Identifier: Apache-2.0
"""Cases that only `make test-long` runs, because they can hardly fail unless a case beside them fails too."""

from __future__ import annotations

from typing import Any

import pytest


def in_long(*values: Any) -> Any:
    """Return a case for `pytest.mark.parametrize` that has the marker `slow`."""
    return pytest.param(*values, marks=pytest.mark.slow)
