# SPDX-License-Identifier: Apache-2.0
"""Rank of benchmarks/many_hosts.py: it checks every collective against NumPy, or measures allreduce.

Its task comes as JSON in the environment; its results go to a file that is named by its rank.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import horovod.numpy as hvd

ORDERS = "MANY_HOSTS_ORDERS"
_LEAST_ROUNDS = 3


def main() -> None:
    orders = json.loads(os.environ[ORDERS])
    began = time.monotonic()
    hvd.init()
    told: dict[str, Any] = {"start_s": time.monotonic() - began}
    hvd.allreduce(np.ones(1), op=hvd.Sum)
    told["first_s"] = time.monotonic() - began
    if orders["check"]:
        told |= collectives_are_right()
    else:
        told["times_us"] = [time_of(size, orders["rounds"], orders["seconds"]) for size in orders["sizes"]]
    told |= {"streams": streams(), "pss_mb": pss_mb()}
    hvd.barrier()
    (Path(orders["folder"]) / str(hvd.rank())).write_text(json.dumps(told))
    hvd.shutdown()


def time_of(size: int, most_rounds: int, seconds: float) -> float:
    """Return an allreduce's median microseconds over the rounds that fit into `seconds`, equally many everywhere."""
    data = np.zeros(size // 4, dtype=np.float32)

    def one_round() -> float:
        hvd.barrier()
        began = time.perf_counter()
        hvd.allreduce(data, op=hvd.Sum, name=f"x{size}")
        return time.perf_counter() - began

    one_round()  # opens connections and grows buffers
    slowest = hvd.allreduce(np.array([one_round()]), op=hvd.Max, name="slowest")[0]
    rounds = int(min(most_rounds, max(_LEAST_ROUNDS, seconds / slowest)))
    return median(one_round() for _ in range(rounds)) * 1e6


def collectives_are_right() -> dict[str, Any]:
    """Raise AssertionError if a result differs from NumPy's in any bit; the data are integers, whose sums are exact."""
    me, size = hvd.rank(), hvd.size()
    for count in (1, 1000, 100_000):
        for dtype in ("int32", "int64", "float32", "float64"):
            reductions_are_right(count, dtype)
    after_allreduce = streams()
    everyone = [whole_numbers(rank, (rank % 3, 2), "int64") for rank in range(size)]
    assert_same(hvd.allgather(everyone[me]), np.concatenate(everyone))
    for root in (0, size // 2, size - 1):
        mine = whole_numbers(me, 1000, "float32")
        assert_same(hvd.broadcast(mine, root_rank=root), whole_numbers(root, 1000, "float32"))
    # Rank r sends (r + s) % 3 numbers to rank s, all with the value r * size + s.
    splits = np.array([(me + to) % 3 for to in range(size)], dtype=np.int32)
    received, sizes = hvd.alltoall(np.repeat(me * size + np.arange(size), splits), splits=splits)
    assert_same(received, np.repeat(np.arange(size) * size + me, splits))
    assert_same(sizes, splits)
    rows = [whole_numbers(rank, (2 * size, 10), "float64") for rank in range(size)]
    assert_same(hvd.reducescatter(rows[me], op=hvd.Sum), sum(rows)[2 * me : 2 * me + 2])
    equal_bits()
    return {"streams_after_allreduce": after_allreduce}


def reductions_are_right(count: int, dtype: str) -> None:
    everyone = np.stack([whole_numbers(rank, count, dtype) for rank in range(hvd.size())])
    sums = everyone.sum(0, dtype=dtype)
    for op, expected in ((hvd.Sum, sums), (hvd.Min, everyone.min(0)), (hvd.Max, everyone.max(0))):
        result = hvd.allreduce(everyone[hvd.rank()], op=op, name=f"reduction.{count}.{dtype}.{op}")
        assert_same(result, expected)


def equal_bits() -> None:
    """Check that rounded sums are equal on every rank, too."""
    for count in (1000, 500_000):
        data = np.sin(np.arange(count, dtype=np.float32) + hvd.rank())
        digest = hashlib.sha256(hvd.allreduce(data, op=hvd.Sum, name=f"bits.{count}").tobytes()).digest()
        digests = hvd.allgather(np.frombuffer(digest, dtype=np.uint8)[None])
        assert (digests == digests[0]).all(), f"ranks have different sums of {count} numbers"


def whole_numbers(rank: int, shape: int | tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """Return integers without numpy.random, whose import takes more memory than the engine."""
    count = int(np.prod(shape))
    return ((np.arange(count) * 7919 + rank * 104_729) % 201 - 100).astype(dtype).reshape(shape)


def assert_same(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    assert np.array_equal(found, expected), f"rank {hvd.rank()} has {found}, NumPy {expected}"


def streams() -> int:
    """Return the number of this rank's connections between hosts."""
    from horovod.common.context import default_context

    return int(json.loads(default_context.world.describe())["streams"])


def pss_mb() -> float:
    """Return the memory of this process in MiB, with its share of the pages that it shares with others."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


if __name__ == "__main__":
    main()
