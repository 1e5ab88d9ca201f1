# SPDX-License-Identifier: Apache-2.0
"""NVTX ranges that show operations on CUDA tensors in NVIDIA's profilers, from the call until the work is launched."""

from __future__ import annotations

import torch

from horovod.common.context import default_context


class NvtxRange:
    """Range of one operation, or of several in one call. Without a profiler it costs less than a microsecond."""

    __slots__ = ("_number",)

    def __init__(self, name: str) -> None:
        wanted = not default_context.settings["HOROVOD_DISABLE_NVTX_RANGES"]
        self._number: int | None = torch.cuda.nvtx.range_start(name) if wanted else None

    def end(self) -> None:
        """End the range, if it has not ended yet."""
        if self._number is not None:
            torch.cuda.nvtx.range_end(self._number)
            self._number = None

    __del__ = end  # for operations that raised an error
