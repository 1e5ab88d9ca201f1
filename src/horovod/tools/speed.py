# SPDX-License-Identifier: Apache-2.0
"""Speed of allreduce between ranks: time and bandwidth for a few sizes."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20
# Bytes and repetitions: enough for a stable median, few enough to take a second even over sockets.
ALL_SIZES = ((8, 500), (4 * KIB, 500), (64 * KIB, 200), (MIB, 50), (16 * MIB, 8))
SHORT = ((8, 300), (16 * MIB, 6))
_WARM_UP = 3


@dataclass(frozen=True)
class Speed:
    """Time of an in-place allreduce of float32: the median of the slowest rank."""

    size: int
    seconds: float

    @property
    def bandwidth(self) -> float:
        """Return the bytes of the tensor per second."""
        return self.size / self.seconds


def measure(sizes: tuple[tuple[int, int], ...] = ALL_SIZES) -> list[float]:
    """Return the median time of an allreduce of each size, in seconds. Call on every rank."""
    import numpy as np

    import horovod.numpy as hvd

    medians = []
    for size, repetitions in sizes:
        tensor = np.zeros(size // 4, np.float32)
        times = []
        hvd.barrier()
        for _ in range(_WARM_UP + repetitions):
            start = time.perf_counter()
            hvd.allreduce_(tensor, op=hvd.Sum, name=f"speed.{size}")
            times.append(time.perf_counter() - start)
        medians.append(statistics.median(times[_WARM_UP:]))
    return medians


def slowest(by_rank: list[list[float]], sizes: tuple[tuple[int, int], ...]) -> list[Speed]:
    return [Speed(size, max(times)) for (size, _), *times in zip(sizes, *by_rank, strict=True)]


def size_text(size: int) -> str:
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def time_text(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def bandwidth_text(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.2f} GB/s" if bytes_per_second >= 1e8 else f"{bytes_per_second / 1e6:.2f} MB/s"
