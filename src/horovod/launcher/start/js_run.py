# SPDX-License-Identifier: Apache-2.0
"""Detection of LSF's jsrun. `horovodrun --jsrun` starts jobs through it."""

from __future__ import annotations

import shutil


def is_jsrun_installed() -> bool:
    return shutil.which("jsrun") is not None
