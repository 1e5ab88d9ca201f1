# SPDX-License-Identifier: Apache-2.0
"""Tensors in memory of a device that all ranks map are reduced where they lie; on the stand-in for the driver."""

import re

import pytest
from devicekit.standins import LATE, STANDIN
from faultkit.jobs import PlainJob
from testkit.launcher import horovodrun
from testkit.preloaded import command

pytestmark = pytest.mark.timeout(180)  # the first test compiles the stand-in

PROGRAM = command(str(STANDIN / "regions_program.py"))


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_bits_are_those_of_the_host_and_nothing_is_left(driver, ranks):
    checks = "bits,row,unlike,reuse,join" + (",set" if ranks > 2 else "")
    done = horovodrun("-np", str(ranks), *PROGRAM, "results", checks, env={**driver, **LATE}, limit_s=55)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all checks passed") == ranks, done.stdout + done.stderr


def test_a_rank_that_cannot_map_the_others_memory_makes_all_copy(driver):
    env = {**driver, **LATE, "HOROVOD_LOG_LEVEL": "info"}
    done = horovodrun("-np", "3", *PROGRAM, "refused", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all checks passed") == 3, done.stdout + done.stderr
    told = re.findall(r"in memory that was made for them are copied like others: could not reach", done.stdout)
    assert len(told) == 3, done.stdout + done.stderr


APART = {
    "GPUs of their own": {"DEVICE_BY_RANK": "1"},
    "staged": {"HOROVOD_GPU_TRANSPORT": "staged"},
    "no sharing": {"STANDIN_FAIL": "cuIpcOpenMemHandle_v2=201"},
}


@pytest.mark.parametrize("why", APART)
def test_ranks_that_do_not_share_a_device_get_no_such_memory(driver, why):
    done = horovodrun("-np", "2", *PROGRAM, "apart", env={**driver, **APART[why]})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all checks passed") == 2, done.stdout + done.stderr


@pytest.mark.parametrize("delays", ["0,30000,30000", "30000,30000,0", "30000,0,30000"])
def test_ranks_leave_when_what_they_launched_is_done(driver, delays):
    done = horovodrun("-np", "3", *PROGRAM, "departure", env={**driver, "DELAYS_US": delays})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all checks passed") == 3, done.stdout + done.stderr


@pytest.mark.parametrize("working", ["idle", "at work"])
@pytest.mark.parametrize("victim", [1, 2], ids=["who waits", "who sums for all"])
def test_the_others_hear_of_a_killed_rank_and_shut_down(driver, victim, working):
    with PlainJob([*PROGRAM, "fault", str(victim), working], "a:3", {**driver, **LATE}) as job:
        job.wait(limit_s=40)
        printed = {rank: job.printed(rank) for rank in range(3)}
    said = re.compile(r"shut down in (.*) s: (.*); left (.*)", re.DOTALL)
    for rank in {0, 1, 2} - {victim}:
        found = said.search(printed[rank])
        assert found, printed
        assert float(found[1]) < 20, printed
        assert re.search(rf"\brank {victim}\b", found[2]), printed
        assert found[3].strip() == "{}", printed
