# SPDX-License-Identifier: Apache-2.0
"""Point to point between GPUs, without one: over NCCL, and through host memory where that cannot be."""

import re
import sys

import pytest
from devicekit.standins import LATE, STANDIN
from faultkit.jobs import PlainJob
from testkit.launcher import horovodrun
from testkit.processes import wait_for_all

pytestmark = pytest.mark.timeout(180)  # the first of them compiles the stand-ins
pytest.importorskip("torch")

PROGRAM = [sys.executable, str(STANDIN / "messages_program.py")]
SETTINGS = {"OMP_NUM_THREADS": "1"}


def said_by(env: dict[str, str], ranks: int, *program: str, **more: str) -> str:
    done = horovodrun("-np", str(ranks), *PROGRAM, *program, env={**env, **SETTINGS, **more}, limit_s=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(("ranks", "seed"), [(2, 0), (2, 1), (3, 2), (4, 3)])
def test_messages_go_over_nccl_in_any_order(nccl, ranks, seed):
    said = said_by({**nccl, **LATE}, ranks, "ring", "nccl", str(seed), HOROVOD_LOG_LEVEL="info")
    assert said.count("all messages came") == ranks, said
    assert len(re.findall(r"messages from rank \d go through NCCL 2\.28\.9", said)) == ranks, said


def test_so_they_do_between_ranks_without_shared_memory(nccl):
    assert said_by({**nccl, **LATE}, 2, "ring", "nccl", "4", HOROVOD_SHARED_MEMORY="0").count("all messages came") == 2


@pytest.mark.parametrize("transport", ["own", "staged"])
def test_who_wants_no_nccl_gets_host_memory(nccl, transport):
    said = said_by({**nccl, **LATE}, 2, "ring", "host", "5", HOROVOD_GPU_TRANSPORT=transport)
    assert said.count("all messages came") == 2, said


def test_ranks_that_share_a_gpu_use_host_memory(nccl):
    env = {**nccl, **LATE, "HOROVOD_LOG_LEVEL": "info"}
    del env["STANDIN_UUID_BY_RANK"]
    said = said_by(env, 2, "ring", "host", "6")
    assert said.count("all messages came") == 2, said
    assert "go through host memory: ranks 1,0 share a GPU, which NCCL refuses" in said, said


@pytest.mark.parametrize("times", range(2))
def test_messages_and_collectives_never_wait_for_each_other(nccl, times):
    assert said_by(nccl, 2, "circle").count("all messages came") == 2


@pytest.mark.parametrize("ranks", [2, 4])
def test_ends_that_send_first_meet(nccl, ranks):
    assert said_by(nccl, ranks, "both_first").count("all messages came") == ranks


def test_a_send_may_be_forgotten(nccl):
    assert said_by(nccl, 2, "forgotten").count("all messages came") == 2


def test_a_rank_may_send_to_itself(nccl):
    assert said_by(nccl, 2, "itself", "host").count("all messages came") == 2


def test_nccl_or_nothing(nccl):
    assert said_by(nccl, 2, "refused", HOROVOD_GPU_TRANSPORT="nccl").count("refused") >= 2


def test_sizes_that_differ_are_told_to_both(nccl):
    assert said_by(nccl, 2, "mismatch").count("all messages came") == 2


@pytest.mark.parametrize(("transport", "way"), [("auto", "nccl"), ("own", "host")])
def test_a_rank_may_leave_after_its_last_message(nccl, transport, way):
    said = said_by({**nccl, **LATE}, 2, "departure", way, HOROVOD_GPU_TRANSPORT=transport)
    assert said.count("all messages came") == 2, said


@pytest.mark.parametrize("transport", ["auto", "own"])
def test_a_rank_that_leaves_in_the_middle_of_a_message_harms_nobody(nccl, transport):
    said = said_by({**nccl, **LATE}, 3, "unfinished", HOROVOD_GPU_TRANSPORT=transport)
    assert said.count("went on") == 2, said


@pytest.mark.parametrize("end", ["SIGKILL", "SIGSTOP"])
def test_a_rank_that_is_no_more_keeps_nobody_waiting(nccl, end):
    env = {**nccl, **SETTINGS, "HOROVOD_PEER_TIMEOUT_SECONDS": "3"}
    with PlainJob([*PROGRAM, "end", end], "a:3", env) as job:
        wait_for_all([job.processes[0], job.processes[2]], 60)
        printed = {rank: job.printed(rank) for rank in (0, 2)}
    for text in printed.values():
        found = re.search(r"heard in (.*) s; communicators left: 0", text)
        assert found, printed
        assert float(found[1]) < 10, printed
