# SPDX-License-Identifier: Apache-2.0
"""Elastic states that tests write to disk without other ranks, and the numbers of their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from horovod.common.checkpoint_folder import list_files, number_of
from horovod.common.elastic import ObjectState


def make_state(**values: Any) -> ObjectState:
    """Return the state of a training before its first step, with additional values."""
    return ObjectState(lambda value: value, lambda: 0, **{"weights": np.zeros(4), "step": 0, **values})


def numbers(folder: Path) -> list[int]:
    """Return the numbers of the checkpoints in a folder, the newest first."""
    return [number_of(path) for path in list_files(folder)]
