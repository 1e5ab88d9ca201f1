# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer(gradient_as_bucket_view=True) where ranks share a GPU, on the stand-in for the driver."""

import pytest
from devicekit.standins import STANDIN
from testkit.launcher import horovodrun
from testkit.long import in_long
from testkit.preloaded import command

pytestmark = pytest.mark.timeout(180)  # the first test compiles the stand-in

PROGRAM = command(str(STANDIN / "buckets_program.py"))
QUIET = {"OMP_NUM_THREADS": "1", "HOROVOD_DISABLE_NVTX_RANGES": "1"}


def train(env: dict[str, str], ranks: int, shares: str) -> None:
    done = horovodrun("-np", str(ranks), *PROGRAM, shares, env={**env, **QUIET}, limit_s=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all checks passed") == ranks, done.stdout + done.stderr


@pytest.mark.parametrize("ranks", [in_long(2), 4])
def test_gradients_are_reduced_where_they_lie(driver, ranks):
    train(driver, ranks, "shared")


def test_where_ranks_share_no_gpu_gradients_stay_where_they_are(driver):
    train({**driver, "STANDIN_FAIL": "cuIpcOpenMemHandle_v2=201"}, 2, "apart")
