# SPDX-License-Identifier: Apache-2.0
"""The handler for programs that XLA runs on a GPU, called without XLA, with the stand-in for the driver."""

import re
import sys
from pathlib import Path

import pytest
from faultkit.jobs import PlainJob
from testkit.launcher import horovodrun

pytestmark = pytest.mark.timeout(180)  # the first test compiles the stand-in

PROGRAM = [sys.executable, str(Path(__file__).parent / "standin" / "xla_program.py")]
LATE = {"STANDIN_DELAY_US": "200"}


@pytest.mark.parametrize(
    "way",
    [{}, {"HOROVOD_GPU_TRANSPORT": "staged"}, {"DEVICE_BY_RANK": "1"}],
    ids=["shared memory of the device", "host memory", "devices of their own"],
)
def test_collectives_are_part_of_the_stream_that_calls_them(xla, way):
    done = horovodrun("-np", "2", *PROGRAM, "results", env={**xla, **LATE, **way}, limit_s=55)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all checks passed") == 2, done.stdout + done.stderr


def test_a_program_that_waits_for_a_killed_rank_hears_of_it(xla):
    with PlainJob([*PROGRAM, "killed"], "a:3", {**xla, **LATE}) as job:
        job.wait(limit_s=40)
        printed = {rank: job.printed(rank) for rank in range(3)}
    for rank in (0, 2):
        told = re.search(r"shut down in (.*) s: (.*)", printed[rank])
        assert told, printed
        assert float(told[1]) < 20, printed
        assert re.search(r"Horovod: .*\brank 1\b", told[2]), printed


def test_a_program_that_waits_does_not_keep_others_from_shutting_down(xla):
    done = horovodrun("-np", "2", *PROGRAM, "shutdown", env=xla, limit_s=55)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("shut down") == 2, done.stdout + done.stderr
