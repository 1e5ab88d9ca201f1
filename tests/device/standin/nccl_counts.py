# SPDX-License-Identifier: Apache-2.0
"""Counters of the stand-in for NCCL in this process."""

from __future__ import annotations

import ctypes
import os


def counted(what: str) -> int:
    """Return how many communicators are `live`, how many `launches` there were, or operations with `factors`."""
    count = getattr(ctypes.CDLL(os.environ["STANDIN_NCCL"]), f"standin_nccl_{what}")
    count.restype = ctypes.c_long
    return int(count())
