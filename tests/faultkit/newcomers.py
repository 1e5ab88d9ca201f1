# SPDX-License-Identifier: Apache-2.0
"""Delay of replacements by a test, so that the survivors certainly make a step before a replacement joins."""

from __future__ import annotations

import os
import time
from pathlib import Path

_LOOK_AGAIN_S = 0.02


def hold_back(folder: Path, *births: int) -> None:
    """Hold back workers with these ids; call before they are started."""
    for birth in births:
        _file(folder, birth).touch()


def let_come(folder: Path, birth: int) -> None:
    _file(folder, birth).unlink()


def wait_if_held_back(folder: Path) -> None:
    """Wait while this worker is held back; a worker calls this before hvd.init()."""
    while _file(folder, int(os.environ["HOROVOD_BIRTH_ID"])).exists():
        time.sleep(_LOOK_AGAIN_S)


def _file(folder: Path, birth: int) -> Path:
    return folder / f"held-back-{birth}"
