# SPDX-License-Identifier: Apache-2.0
"""Ranks some of which share a GPU, without one: through its memory there, and through NCCL between GPUs.

STANDIN_GPUS assigns the GPUs: with "0,0,1" ranks 0 and 1 share one, and rank 0 leads there.
"""

import re
from collections.abc import Mapping

import pytest
from devicekit.standins import LATE, STANDIN
from faultkit.jobs import PlainJob
from testkit.launcher import horovodrun, lines_by_rank
from testkit.long import in_long
from testkit.preloaded import command
from testkit.processes import wait_for_all

pytestmark = pytest.mark.timeout(180)  # the first test compiles the stand-ins

PROGRAM = command(str(STANDIN / "nccl_program.py"))
WAYS = "INFO: process set 0: CUDA tensors go through NCCL 2.28.9 between 2 GPUs, and through a GPU's own memory among"


def run(env: Mapping[str, str], gpus: str, *arguments: str) -> str:
    ranks = len(gpus.split(","))
    done = horovodrun("-np", str(ranks), *PROGRAM, *arguments, env={**env, "STANDIN_GPUS": gpus}, limit_s=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("gpus", [in_long("0,0,1,1"), "0,1,1,0", "0,0,1"])
def test_every_operation_as_in_host_memory(standins, gpus):
    said = run(
        {**standins, **LATE}, gpus, "results", "operations,groups,many,averages,order,asynchrony,sets,exchanges,join"
    )
    assert said.count("all checks passed") == len(gpus.split(",")), said


@pytest.mark.parametrize("gpus", ["0,1,1", "0,0,0,1"])
def test_gpus_may_have_different_numbers_of_ranks(standins, gpus):
    said = run({**standins, **LATE}, gpus, "results", "many,order,sets,exchanges,join")
    assert said.count("all checks passed") == len(gpus.split(",")), said


@pytest.mark.parametrize(("hosts", "gpus"), [("a:2,b:2", "0,0,1,1"), ("a:2,b:1", "0,0,1")])
def test_hosts_whose_ranks_share_a_gpu(standins, hosts, gpus):
    """Check that a rank that is alone on its host works without sharing memory with other ranks."""
    program = [*PROGRAM, "results", "groups,many,order,exchanges,join"]
    with PlainJob(program, hosts, {**standins, **LATE, "STANDIN_GPUS": gpus}) as job:
        wait_for_all(job.processes, 60)
        printed = [job.printed(rank) for rank in range(len(job.processes))]
    assert all("all checks passed" in text for text in printed), printed


@pytest.mark.parametrize(("gpus", "seed"), [in_long("0,0,1,1", 0), ("0,1,0,1", 1), ("0,0,0,1", 11), ("0,0,0,1,1,1", 3)])
def test_sets_that_overlap_launch_in_one_order(standins, gpus, seed):
    said = run({**standins, **LATE}, gpus, "orders", str(seed))
    assert said.count("all in order") == len(gpus.split(",")), said


def test_the_log_and_the_timeline_name_the_way(standins, tmp_path):
    program = [*command(str(STANDIN / "program.py")), "timeline", str(tmp_path)]
    env = {**standins, **LATE, "STANDIN_GPUS": "0,0,1", "HOROVOD_LOG_LEVEL": "info"}
    done = horovodrun("-np", "3", *program, env=env, limit_s=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count(WAYS) == 3, done.stdout + done.stderr
    for rank in range(3):
        text = (tmp_path / f"{rank}.json").read_text()
        assert '"IPC_NCCL_ALLREDUCE"' in text, text
        assert "CUDA_" not in text, text


def test_it_may_be_asked_for_by_name(standins):
    said = run(
        {**standins, "HOROVOD_GPU_TRANSPORT": "nccl", "HOROVOD_GPU_STAGED_BYTES": "1000000"},
        "0,0,1",
        "results",
        "order",
    )
    assert said.count("all checks passed") == 3, said


def test_nccl_may_be_told_that_one_gpu_is_two(standins):
    """Simulate a machine with one GPU, on which test_torch_nccl.py tests this with NCCL itself."""
    env = {**standins, "HOROVOD_GPU_TRANSPORT": "nccl", "HOST_IDS": "a,a,b,b", "HOROVOD_LOG_LEVEL": "info"}
    said = run(env, "0,0,0,0", "otherwise", "many,order")
    assert said.count("all checks passed") == 4, said
    assert said.count(WAYS) == 4, said


# ---- fallbacks


@pytest.mark.parametrize("transport", ["staged", "own"])
def test_who_asks_for_another_way_gets_it(standins, transport):
    said = run({**standins, "HOROVOD_GPU_TRANSPORT": transport}, "0,0,1", "otherwise", "groups,order")
    assert said.count("all checks passed, launches: 0") == 3, said


def test_few_bytes_go_through_host_memory(standins):
    said = run({**standins, "HOROVOD_GPU_STAGED_BYTES": "1000000"}, "0,0,1", "otherwise", "order")
    assert said.count("all checks passed, launches: 0") == 3, said


def test_sums_whose_bits_must_not_depend_on_the_layout_go_another_way(standins):
    said = run({**standins, "HOROVOD_DETERMINISTIC": "1"}, "0,0,1", "otherwise", "asynchrony")
    assert said.count("all checks passed, launches: 0") == 3, said


WITHOUT = {
    "no memory of the host is shared": (
        {"HOROVOD_SHARED_MEMORY": "0"},
        "on rank 0 it does not share memory of the host with all ranks of its GPU",
    ),
    "memory of the GPU cannot be shared": (
        {"FAIL_AT_RANK_1": "cuIpcGetMemHandle=801"},
        "on rank 0 could not share memory of GPU 0 (Stand-in)",
    ),
    "no NCCL": ({"HOROVOD_NCCL_LIBRARY": "/nowhere/libnccl.so.2"}, "rank 0 has no NCCL: /nowhere/libnccl.so.2"),
}


@pytest.mark.parametrize("why", WITHOUT)
def test_the_reason_is_told_where_it_cannot_be_done(standins, why):
    trouble, text = WITHOUT[why]
    said = run({**standins, **trouble, "HOROVOD_LOG_LEVEL": "info"}, "0,0,1", "otherwise", "groups,order")
    assert said.count("all checks passed, launches: 0") == 3, said
    found = re.findall(f"INFO: process set 0: CUDA tensors do not go through NCCL: .*{re.escape(text)}", said)
    assert len(found) == 3, said


@pytest.mark.parametrize("why", WITHOUT)
def test_who_asks_for_nccl_hears_why_it_cannot_be_done(standins, why):
    trouble, text = WITHOUT[why]
    heard = lines_by_rank(run({**standins, **trouble, "HOROVOD_GPU_TRANSPORT": "nccl"}, "0,0,1", "refused"))
    assert sorted(heard) == [0, 1, 2], heard
    for (line,) in heard.values():
        assert "HOROVOD_GPU_TRANSPORT=nccl, but" in line, heard
        assert text in line, heard


def test_ranks_of_one_gpu_need_nobody_who_gives_out_turns(standins):
    said = run({**standins, **LATE}, "0,1,1", "going on")
    assert said.count("went on, launches: 0") == 2, said


# ---- failures: the lost rank 1 leads on its GPU or does not

LEADS, FOLLOWS = "0,1,1", "0,0,1"


def faults(env: Mapping[str, str], gpus: str, fault: str) -> dict[int, str]:
    """Return the output of each rank that survived long enough to report how many communicators are left."""
    with PlainJob([*PROGRAM, "fault", fault], "a:3", {**env, **LATE, "STANDIN_GPUS": gpus}) as job:
        wait_for_all([job.processes[0], job.processes[2]], 40)
        printed = {rank: job.printed(rank) for rank in range(3)}
    return {rank: text for rank, text in printed.items() if "communicators left" in text}


@pytest.mark.parametrize("gpus", [LEADS, FOLLOWS])
@pytest.mark.parametrize("fault", ["killed idle", "killed at work"])
def test_the_others_hear_of_a_killed_rank_and_nothing_is_left(standins, gpus, fault):
    told = faults(standins, gpus, fault)
    assert sorted(told) == [0, 2], told
    for text in told.values():
        assert re.search(r"shut down in \d\.\d s: .*\brank 1\b", text), told
        assert "left {'memory': 1, 'streams': 1}" in text, told  # the test's own objects
        assert "communicators left: 0" in text, told


@pytest.mark.parametrize("gpus", [LEADS, FOLLOWS])
def test_several_sets_end_together(standins, gpus):
    told = faults(standins, gpus, "killed in sets")
    assert sorted(told) == [0, 2], told
    for text in told.values():
        assert re.search(r"told: .*\brank 1\b.*; left {}; communicators left: 0", text), told


@pytest.mark.parametrize("gpus", [LEADS, FOLLOWS])
def test_the_others_hear_of_a_frozen_rank(standins, gpus):
    told = faults({**standins, "HOROVOD_PEER_TIMEOUT_SECONDS": "6"}, gpus, "frozen")
    assert sorted(told) == [0, 2], told
    for text in told.values():
        found = re.search(r"raised after (.*) s: .*\brank 1\b", text)
        assert found, told
        assert float(found[1]) < 15, told
        assert "communicators left: 0" in text, told
