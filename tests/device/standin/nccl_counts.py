# SPDX-License-Identifier: Apache-2.0
"""Counters of the stand-in for NCCL in this process."""

from __future__ import annotations

import ctypes
import os


def counted(what: str) -> int:
    """Return the number of communicators (`live`), of `launches`, or of operations with a factor (`factors`)."""
    count = getattr(ctypes.CDLL(os.environ["STANDIN_NCCL"]), f"standin_nccl_{what}")
    count.restype = ctypes.c_long
    return int(count())
