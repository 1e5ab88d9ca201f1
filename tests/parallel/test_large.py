# SPDX-License-Identifier: Apache-2.0
"""Tensors of more than 2^31 elements, which a 32-bit count cannot represent."""

import numpy as np
import psutil
import pytest
from harness.worlds import World, on_all_ranks

import horovod.numpy as hvd

COUNT = 2**31 + 5
NEEDED = 6 * 2**30  # bytes for two ranks that reduce 2 GiB each in place, and for the engine and NumPy
LARGE = World("large", "a:2")


@pytest.fixture
def enough_memory():
    available = psutil.virtual_memory().available
    if available < NEEDED and psutil.virtual_memory().total >= 20 * 2**30:
        pytest.fail(f"{available >> 20} MiB of memory are free, this test needs {NEEDED >> 20}: what takes the rest?")
    if available < NEEDED:
        pytest.skip(f"needs {NEEDED >> 20} MiB of memory, {available >> 20} are free")


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("enough_memory")
@on_all_ranks(LARGE, limit_s=200)
def test_more_elements_than_32_bits_can_count():
    array = np.ones(COUNT, np.uint8)
    marks = np.array([0, 1, 2**30, 2**31 - 1, 2**31, COUNT - 1])
    array[marks] = np.arange(2, 8) + 10 * hvd.rank()
    result = hvd.allreduce_(array, op=hvd.Sum)
    assert result is array
    assert array[marks].tolist() == [2 * value + 10 for value in range(2, 8)]
    array[marks] = 2
    # Compare in pieces, because comparing the whole array at once would allocate as much memory again.
    for start in range(0, COUNT, 2**26):
        assert np.all(array[start : start + 2**26] == 2), f"wrong between {start} and {start + 2**26}"
