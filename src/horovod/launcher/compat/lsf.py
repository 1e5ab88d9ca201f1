# SPDX-License-Identifier: Apache-2.0
"""LSF under Horovod's names. See horovod.launcher.start.allocation."""

from __future__ import annotations

import os

from horovod.launcher.start.allocation import find_allocation, inside_lsf


class LSFUtils:
    """Information about the LSF job in which this process runs."""

    @staticmethod
    def using_lsf() -> bool:
        return inside_lsf(os.environ)

    @staticmethod
    def get_num_processes() -> int:
        found = find_allocation(os.environ)
        return found.processes if found is not None and found.source == "LSF" else 0
