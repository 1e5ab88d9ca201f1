# SPDX-License-Identifier: Apache-2.0
"""Messages between GPUs, without a GPU: through a GPU's memory, or through host memory as a fallback."""

import re

import pytest
from devicekit.standins import LATE, OWN_GPUS, STANDIN
from faultkit.jobs import PlainJob
from testkit.launcher import horovodrun
from testkit.long import in_long
from testkit.preloaded import command
from testkit.processes import wait_for_all

pytestmark = pytest.mark.timeout(180)  # the first test compiles the stand-ins
pytest.importorskip("torch")

PROGRAM = command(str(STANDIN / "messages_program.py"))
SETTINGS = {"OMP_NUM_THREADS": "1", "HOROVOD_LOG_LEVEL": "info"}
BY_GPU = "go through the GPU's memory"
NO_COPIES = {"STANDIN_FAIL": "cuMemcpyDtoHAsync_v2=1"}
WITHOUT = {
    "other GPUs": (OWN_GPUS, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"),
    "refused": ({"STANDIN_FAIL": "cuIpcOpenMemHandle_v2=201"}, "CUDA_ERROR_INVALID_CONTEXT: invalid device context"),
}


def said_by(env: dict[str, str], ranks: int, *program: str, **more: str) -> str:
    done = horovodrun("-np", str(ranks), *PROGRAM, *program, env={**env, **SETTINGS, **more}, limit_s=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(("ranks", "seed"), [(2, 0), in_long(2, 1), in_long(3, 2), (4, 3)])
def test_messages_go_through_the_gpu_in_any_order(driver, ranks, seed):
    said = said_by({**driver, **LATE}, ranks, "ring", str(seed))
    assert said.count("all messages came") == ranks, said
    assert said.count(BY_GPU) == ranks, said


def test_what_goes_through_the_gpu_never_comes_to_the_host(driver):
    assert said_by({**driver, **NO_COPIES}, 2, "circle").count("all messages came") == 2


@pytest.mark.parametrize("why", WITHOUT)
def test_memory_that_cannot_be_reached_goes_through_the_hosts(driver, why):
    env, text = WITHOUT[why]
    said = said_by({**driver, **LATE, **env}, 2, "ring", "5")
    assert said.count("all messages came") == 2, said
    assert BY_GPU not in said, said
    assert len(re.findall(rf"messages from rank \d go through host memory: .*{text}", said)) == 2, said


@pytest.mark.parametrize(
    ("name", "value"),
    [("GPU_TRANSPORT", "staged"), ("GPU_STAGED_BYTES", "1000000"), ("SHARED_MEMORY", "0")],
)
def test_so_do_others_by_settings(driver, name, value):
    said = said_by({**driver, **LATE, f"HOROVOD_{name}": value}, 2, "ring", "6")
    assert said.count("all messages came") == 2, said
    assert BY_GPU not in said, said


@pytest.mark.parametrize("own_gpus", [False, True])
def test_messages_and_collectives_never_wait_for_each_other(standins, own_gpus):
    """Check negotiated operations, and operations launched at the call because ranks have their own GPUs."""
    env = {**standins, **(OWN_GPUS if own_gpus else {})}
    assert said_by(env, 2, "circle").count("all messages came") == 2


@pytest.mark.parametrize("ranks", [in_long(2), 4])
def test_ends_that_send_first_meet(driver, ranks):
    assert said_by(driver, ranks, "both_first").count("all messages came") == ranks


def test_a_send_may_be_forgotten(driver):
    assert said_by(driver, 2, "forgotten").count("all messages came") == 2


def test_a_rank_may_send_to_itself(driver):
    assert said_by(driver, 2, "itself").count("all messages came") == 2


def test_sizes_that_differ_are_told_to_both(driver):
    assert said_by(driver, 2, "mismatch").count("all messages came") == 2


@pytest.mark.parametrize("transport", ["auto", "staged"])
def test_a_rank_may_leave_after_its_last_message(driver, transport):
    said = said_by({**driver, **LATE}, 2, "departure", HOROVOD_GPU_TRANSPORT=transport)
    assert said.count("all messages came") == 2, said


@pytest.mark.parametrize("transport", ["auto", "staged"])
def test_a_rank_that_leaves_in_the_middle_of_a_message_harms_nobody(driver, transport):
    said = said_by({**driver, **LATE}, 3, "unfinished", HOROVOD_GPU_TRANSPORT=transport)
    assert said.count("went on") == 2, said


@pytest.mark.parametrize("transport", ["auto", "staged"])
def test_a_gpu_that_comes_to_its_end_is_told_to_both_ends(driver, transport):
    with PlainJob([*PROGRAM, "fault"], "a:2", {**driver, **SETTINGS, "HOROVOD_GPU_TRANSPORT": transport}) as job:
        codes = job.wait(limit_s=60)
        printed = [job.printed(rank) for rank in range(2)]
    assert codes == [0, 0], printed
    for text in printed:
        found = re.search(r"heard in (.*) s", text)
        assert found, printed
        assert float(found[1]) < 15, printed


@pytest.mark.parametrize("end", ["SIGKILL", "SIGSTOP"])
def test_a_rank_that_is_no_more_keeps_nobody_waiting(driver, end):
    env = {**driver, **SETTINGS, "HOROVOD_PEER_TIMEOUT_SECONDS": "6"}
    with PlainJob([*PROGRAM, "end", end], "a:3", env) as job:
        wait_for_all([job.processes[0], job.processes[2]], 60)
        printed = {rank: job.printed(rank) for rank in (0, 2)}
    for text in printed.values():
        found = re.search(r"heard in (.*) s; mapped: 0", text)
        assert found, printed
        assert float(found[1]) < 15, printed
