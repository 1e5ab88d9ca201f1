# SPDX-License-Identifier: Apache-2.0
"""Gradients in memory of a GPU that ranks share, on a machine that has a GPU."""

import re
import sys
from pathlib import Path

import pytest
import torch
from faultkit.jobs import PlainJob
from testkit.launcher import horovodrun

PROGRAM = [sys.executable, str(Path(__file__).parent / "buckets_cuda_program.py")]

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU on this machine")


@pytest.mark.parametrize("ranks", [2, 4])
def test_gradients_are_reduced_where_they_lie_to_the_bits_of_the_host(ranks: int) -> None:
    done = horovodrun("-np", str(ranks), *PROGRAM, "checks", limit_s=55)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all checks passed") == ranks, done.stdout


@pytest.mark.parametrize("victim", [1, 2], ids=["who waits", "who sums for all"])
def test_a_killed_rank_keeps_nobodys_stream_waiting(victim: int) -> None:
    with PlainJob([*PROGRAM, "loss", str(victim)], "a:3") as job:
        job.wait(limit_s=55)
        printed = {rank: job.printed(rank) for rank in range(3) if rank != victim}
    for text in printed.values():
        found = re.search(r"lost in (.*) s", text)
        assert found, printed
        assert float(found[1]) < 5, printed
