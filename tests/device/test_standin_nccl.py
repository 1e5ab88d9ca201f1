# SPDX-License-Identifier: Apache-2.0
"""NCCL's part without a GPU: stand-ins for the driver and for NCCL on host memory (standin/libcuda*.cc, libnccl.cc).

They test the order of launches, abort, fallbacks from NCCL, and the rules about versions. test_torch_nccl.py tests what
NCCL computes.
"""

import re
from collections.abc import Mapping

import pytest
from devicekit.standins import LATE, OWN_GPUS, STANDIN, compile_standin
from devicekit.timelines import on_gpus
from faultkit.jobs import PlainJob
from testkit.launcher import horovodrun, lines_by_rank
from testkit.long import in_long
from testkit.places import python_path
from testkit.preloaded import command
from testkit.processes import wait_for_all

pytestmark = pytest.mark.timeout(180)  # the first test compiles the stand-ins

PROGRAM = command(str(STANDIN / "nccl_program.py"))
EVERYTHING = "operations,groups,many,averages,order,asynchrony,sets,exchanges,join"


@pytest.fixture(scope="session")
def old_nccl(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return variables with which ranks find a stand-in for NCCL that lacks a required function."""
    folder = tmp_path_factory.mktemp("old_nccl")
    return {**compile_standin(folder, "libcuda.so.1", "libnccl.so.2", "-DSTANDIN_NCCL_OLD"), **OWN_GPUS}


def run(env: Mapping[str, str], ranks: int, *arguments: str) -> tuple[str, str]:
    done = horovodrun("-np", str(ranks), *PROGRAM, *arguments, env=env, limit_s=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_operation_goes_through_nccl(nccl, ranks):
    said, _ = run({**nccl, **LATE}, ranks, "results", EVERYTHING)
    assert said.count("all checks passed") == ranks, said


def test_ranks_that_reach_each_other_by_sockets_meet_too(nccl):
    said, _ = run({**nccl, **LATE, "HOROVOD_SHARED_MEMORY": "0"}, 4, "results", "groups,sets,exchanges,join")
    assert said.count("all checks passed") == 4, said


def test_ranks_of_one_gpu_may_ask_for_it(nccl):
    env = {**nccl, "HOROVOD_GPU_TRANSPORT": "nccl"}
    del env["STANDIN_UUID_BY_RANK"]
    said, _ = run(env, 2, "results", "groups,order")
    assert said.count("all checks passed") == 2, said


def test_a_rank_that_has_joined_keeps_to_its_own_gpu(nccl):
    """Check this for each number that the rank may have for its GPU, and for each rank that joins."""
    said, _ = run({**nccl, **LATE, "DEVICE_BY_RANK": "1"}, 3, "joining")
    assert said.count("all have joined") == 3, said


def test_factors_that_are_not_used_again_are_forgotten(nccl):
    said, _ = run(nccl, 2, "factors")
    assert said.count("all factors were right") == 2, said


def test_the_file_of_a_wheel_is_taken_where_none_is_loaded(tmp_path_factory):
    """Check that the library is found with Python's search path, which the system's loader does not use."""
    site, driver = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("driver")
    wheels = site / "nvidia" / "nccl" / "lib"
    wheels.mkdir(parents=True)
    library = compile_standin(wheels, "libnccl.so.2")["STANDIN_NCCL"]
    env = {**compile_standin(driver, "libcuda.so.1"), **OWN_GPUS, "HOROVOD_LOG_LEVEL": "info"}
    env["PYTHONPATH"] = python_path(site)  # before the path of this process, which may contain Horovod itself
    env["STANDIN_NCCL"] = library
    said, _ = run(env, 2, "otherwise", "groups")
    assert said.count("CUDA tensors go through NCCL 2.28.9") == 2, said
    assert not re.search(r"launches: 0$", said, re.M), said


@pytest.mark.parametrize("seed", [0, in_long(1), in_long(2)])
def test_sets_that_overlap_launch_in_one_order(nccl, seed):
    said, _ = run({**nccl, **LATE}, 4, "orders", str(seed))
    assert said.count("all in order") == 4, said


# ---- fallbacks from NCCL


def test_ranks_that_share_a_gpu_go_through_its_memory(nccl):
    env = {**nccl, "HOROVOD_LOG_LEVEL": "info"}
    del env["STANDIN_UUID_BY_RANK"]
    said, _ = run(env, 2, "otherwise", "groups,order")
    assert said.count("all checks passed, launches: 0") == 2, said
    assert said.count("do not go through NCCL: ranks 0, 1 share a GPU") >= 2, said
    assert "through the GPU's own memory" in said, said
    assert said.count("GPUs are shared: 1") == 2, said


WITHOUT = {
    "version": (
        {"NCCL_VERSION_AT_RANK_1": "22105"},
        "different versions of NCCL: rank 1 has 2.21.5, rank 0 has 2.28.9",
    ),
    "too old": ({"NCCL_VERSION_AT_RANK_1": "21304"}, "rank 1 has no NCCL: NCCL 2.13.4 is too old"),
    "nowhere": ({"HOROVOD_NCCL_LIBRARY": "/nowhere/libnccl.so.2"}, "rank 0 has no NCCL: /nowhere/libnccl.so.2"),
    "refused": ({"STANDIN_NCCL_REFUSE_AT_RANK_1": "2"}, "on rank 1 NCCL could not connect the ranks: unhandled system"),
}


@pytest.mark.parametrize("why", WITHOUT)
def test_the_reason_is_told_where_nccl_cannot_be_used(nccl, why):
    trouble, text = WITHOUT[why]
    said, _ = run({**nccl, **trouble, "HOROVOD_LOG_LEVEL": "info"}, 2, "otherwise", "groups,order")
    assert said.count("all checks passed, launches: 0") == 2, said
    assert (
        len(re.findall(f"INFO: process set 0: CUDA tensors do not go through NCCL: .*{re.escape(text)}", said)) == 2
    ), said


@pytest.mark.parametrize("why", WITHOUT)
def test_who_asks_for_nccl_hears_why_it_cannot_be_used(nccl, why):
    trouble, text = WITHOUT[why]
    said, _ = run({**nccl, **trouble, "HOROVOD_GPU_TRANSPORT": "nccl"}, 2, "refused")
    heard = lines_by_rank(said)
    assert sorted(heard) == [0, 1], said
    for (line,) in heard.values():
        assert "HOROVOD_GPU_TRANSPORT=nccl, but" in line, said
        assert text in line, said


def test_a_function_that_is_missing_is_named(old_nccl):
    said, _ = run({**old_nccl, "HOROVOD_LOG_LEVEL": "info"}, 2, "otherwise", "groups")
    assert "NCCL 2.28.9 has no function ncclCommInitRankConfig" in said, said


def test_types_that_nccl_lacks_go_another_way(nccl):
    said, _ = run({**nccl, "HOROVOD_LOG_LEVEL": "info"}, 2, "otherwise", "operations")
    assert re.search(r"INFO: process set 0: ALLREDUCE of \w+ is nothing that NCCL does, and goes another way", said), (
        said
    )


def test_sums_whose_bits_must_not_depend_on_the_layout_go_another_way(nccl):
    said, _ = run({**nccl, "HOROVOD_DETERMINISTIC": "1"}, 2, "otherwise", "asynchrony")
    assert said.count("all checks passed, launches: 0") == 2, said


ONE_GPU = {"STANDIN_GPUS": "0,0"}
OF_RANK_1 = {
    "deterministic": ({"HOROVOD_DETERMINISTIC_AT_RANK_1": "1"}, "asynchrony", "0"),
    "staged": ({"HOROVOD_GPU_TRANSPORT_AT_RANK_1": "staged"}, "groups,order", "0"),
    "own": ({"HOROVOD_GPU_TRANSPORT_AT_RANK_1": "own"}, "groups,order", "0"),
    "nccl": ({"HOROVOD_GPU_TRANSPORT_AT_RANK_1": "nccl", "HOROVOD_DETERMINISTIC": "1"}, "asynchrony", "1"),
    "staged on one GPU": ({**ONE_GPU, "HOROVOD_GPU_TRANSPORT_AT_RANK_1": "staged"}, "groups,order", "0"),
    "ipc on one GPU": ({**ONE_GPU, "HOROVOD_GPU_TRANSPORT_AT_RANK_1": "ipc"}, "groups,order", "0"),
    "few bytes": ({**ONE_GPU, "HOROVOD_GPU_STAGED_BYTES_AT_RANK_1": "1000000"}, "groups,order", "0"),
    "slots": ({**ONE_GPU, "HOROVOD_GPU_SLOT_BYTES_AT_RANK_1": "131072"}, "many", "0"),
}


@pytest.mark.parametrize("what", OF_RANK_1)
def test_what_one_rank_asks_for_holds_for_all(nccl, what):
    """Check that ranks combine their settings. A rank that used its own alone would choose another transport."""
    settings, checks, launches = OF_RANK_1[what]
    said, _ = run({**nccl, **settings}, 2, "otherwise", checks)
    assert said.count(f"all checks passed, launches: {launches}") == 2, said


def test_the_timeline_names_the_way_and_shows_when_the_gpu_did_its_work(nccl, tmp_path):
    program = [*command(str(STANDIN / "program.py")), "timeline", str(tmp_path)]
    done = horovodrun("-np", "2", *program, env={**nccl, **LATE}, limit_s=60)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        text = (tmp_path / f"{rank}.json").read_text()
        assert '"NCCL_ALLREDUCE"' in text, text
        assert "CUDA_" not in text, text
        done_there, transfers = on_gpus(tmp_path / f"{rank}.json", "NCCL_")
        on_gpu = {event["name"]: event for event in done_there}
        assert sorted(on_gpu) == ["ALLREDUCE large", "ALLREDUCE small"], on_gpu
        assert on_gpu["ALLREDUCE large"]["ts"] > transfers["large"]["ts"] + 100_000, (on_gpu, transfers)
        assert on_gpu["ALLREDUCE large"]["dur"] < 900_000, on_gpu  # without the second that the operation waited


# ---- failures


def faults(env: Mapping[str, str], fault: str, limit_s: float = 40) -> dict[int, str]:
    """Return the output of each rank that survived long enough to report how many communicators are left."""
    with PlainJob([*PROGRAM, "fault", fault], "a:3", {**env, **LATE}) as job:
        survivors = [job.processes[0], job.processes[2]]
        wait_for_all(survivors, limit_s)
        printed = {rank: job.printed(rank) for rank in range(3)}
    return {rank: text for rank, text in printed.items() if "communicators left" in text}


@pytest.mark.parametrize("fault", ["killed idle", "killed at work"])
def test_the_others_hear_of_a_killed_rank_and_nothing_is_left(nccl, fault):
    told = faults(nccl, fault)
    assert sorted(told) == [0, 2], told
    for text in told.values():
        assert re.search(r"shut down in \d\.\d s: .*\brank 1\b", text), told
        assert "left {'memory': 1, 'streams': 1}" in text, told  # the test's own objects
        assert "communicators left: 0" in text, told


def test_communicators_of_several_sets_end_together(nccl):
    told = faults(nccl, "killed in sets")
    assert sorted(told) == [0, 2], told
    for text in told.values():
        assert re.search(r"told: .*\brank 1\b.*; left {}; communicators left: 0", text), told


def test_the_others_hear_of_a_frozen_rank(nccl):
    told = faults({**nccl, "HOROVOD_PEER_TIMEOUT_SECONDS": "6"}, "frozen")
    assert sorted(told) == [0, 2], told
    for text in told.values():
        found = re.search(r"raised after (.*) s: .*\brank 1\b", text)
        assert found, told
        assert float(found[1]) < 15, told
        assert "communicators left: 0" in text, told


def test_who_gave_out_turns_is_named_when_it_has_left(nccl):
    said, _ = run(nccl, 3, "departure")
    heard = lines_by_rank(said)
    assert heard[0] == ["left early"], said
    for rank in (1, 2):
        assert re.search(r"told: .*\brank 0\b", heard[rank][0]), said
        assert heard[rank][-1] == "communicators left: 0", said


def test_an_error_of_nccls_ends_the_world(nccl):
    said, _ = run({**nccl, "STANDIN_NCCL_ERROR_AT_RANK_1": "2@5"}, 2, "trouble")
    heard = lines_by_rank(said)
    for rank, lines in heard.items():
        assert "NCCL reported an error there: unhandled system error" in lines[0], (rank, said)
        assert lines[-1] == "communicators left: 0", said
    assert "rank 1" in heard[0][0], said


def test_an_error_of_nccls_is_not_blamed_on_a_rank_after_another_has_left(nccl, tmp_path):
    said, _ = run(nccl, 3, "leaving", str(tmp_path))
    heard = lines_by_rank(said)
    assert heard[2] == ["left early"], said
    for rank in (0, 1):
        assert re.fullmatch(r"told: .*\brank 2\b.*", heard[rank][0]), said
        assert "NCCL" not in heard[rank][0], said
        assert heard[rank][-1] == "communicators left: 0", said
