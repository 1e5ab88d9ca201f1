# SPDX-License-Identifier: Apache-2.0
"""Operations on CUDA tensors as NVIDIA's profilers show them: a range from the call until the work is launched."""

from __future__ import annotations

import torch

from horovod.common.context import default_context


class NvtxRange:
    """Of one operation, or of several that go together. Without a profiler it costs less than a microsecond."""

    __slots__ = ("_number",)

    def __init__(self, name: str) -> None:
        wanted = not default_context.settings["HOROVOD_DISABLE_NVTX_RANGES"]
        self._number: int | None = torch.cuda.nvtx.range_start(name) if wanted else None

    def end(self) -> None:
        """Once is enough; more do no harm."""
        if self._number is not None:
            torch.cuda.nvtx.range_end(self._number)
            self._number = None

    __del__ = end  # of an operation that was refused
