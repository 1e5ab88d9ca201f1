# SPDX-License-Identifier: Apache-2.0
"""Tensors on devices without a GPU: a stand-in for the CUDA driver on host memory (standin/libcuda*.cc).

It tests order, lifetime, fallbacks and faults. Tests on a machine with a GPU check what a GPU computes.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from devicekit.standins import LATE, STANDIN
from devicekit.timelines import on_gpus
from faultkit.jobs import PlainJob
from testkit.launcher import horovodrun, lines_by_rank
from testkit.places import ROOT
from testkit.preloaded import command
from testkit.speed import patience

pytestmark = pytest.mark.timeout(180)  # the first test compiles the stand-in

PROGRAM = command(str(STANDIN / "program.py"))
EVERYTHING = "operations,groups,many,averages,order,asynchrony,sets,exchanges,join"


def check_results(env: Mapping[str, str], ranks: int, transport: str, checks: str = EVERYTHING) -> None:
    done = horovodrun("-np", str(ranks), *PROGRAM, "results", transport, checks, env=env, limit_s=55)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all checks passed") == ranks, done.stdout + done.stderr


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_memory_of_the_device_is_shared(driver, ranks):
    check_results({**driver, **LATE}, ranks, "ipc")


def test_ranks_with_devices_of_their_own_reach_each_others(driver):
    check_results({**driver, **LATE, "DEVICE_BY_RANK": "1"}, 2, "ipc", "groups,many,order,exchanges,join,last joins")


WITHOUT = {
    "asked for": {"HOROVOD_GPU_TRANSPORT": "staged"},
    "refused to one rank": {"FAIL_AT_RANK_1": "cuIpcOpenMemHandle_v2=201"},
    "not to be shared": {"FAIL_AT_RANK_1": "cuIpcGetMemHandle=801"},
    "of strange devices": {"STANDIN_UUID_BY_RANK": "1"},
}


@pytest.mark.parametrize("why", WITHOUT)
def test_host_memory_is_the_other_way_and_gives_the_same(driver, why):
    checks = EVERYTHING if why == "asked for" else "groups,order,exchanges,join"
    check_results({**driver, **LATE, **WITHOUT[why]}, 2, "staged", checks)


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"FAIL_AT_RANK_1": "cuIpcOpenMemHandle_v2=201"}, "CUDA_ERROR_INVALID_CONTEXT: invalid device context"),
        ({"STANDIN_UUID_BY_RANK": "1"}, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"),
    ],
    ids=["refused", "strange"],
)
def test_who_asks_for_the_memory_of_the_device_hears_why_it_cannot_be_shared(driver, env, text):
    done = horovodrun("-np", "2", *PROGRAM, "refused", env={**driver, **env, "HOROVOD_GPU_TRANSPORT": "ipc"})
    assert done.returncode == 0, done.stdout + done.stderr
    for lines in lines_by_rank(done.stdout).values():
        (line,) = lines
        assert "HOROVOD_GPU_TRANSPORT=ipc, but could not reach another rank's memory from GPU 0" in line, done.stdout
        assert text in line, done.stdout
    assert sorted(lines_by_rank(done.stdout)) == [0, 1], done.stdout


def test_a_rank_that_leaves_early_keeps_its_memory_until_others_have_read_it(driver):
    done = horovodrun("-np", "3", *PROGRAM, "departure", env={**driver, "DELAY_US_BUT_OF_RANK_0": "30000"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("departed") == 3, done.stdout + done.stderr


@pytest.mark.parametrize(("mps", "small"), [("0", "CUDA_STAGED_ALLREDUCE"), ("1", "CUDA_IPC_ALLREDUCE")])
def test_the_timeline_shows_when_the_gpu_did_its_work_and_which_way_it_went(driver, tmp_path, mps, small):
    """Check that small tensors need no staging where processes do not take turns on the GPU."""
    env = {**driver, "HOROVOD_GPU_STAGED_BYTES": "1000", "STANDIN_MPS": mps}
    done = horovodrun("-np", "2", *PROGRAM, "timeline", str(tmp_path), env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    done_there, transfers = on_gpus(tmp_path / "1.json", "CUDA_")
    on_gpu = {event["name"]: event for event in done_there}
    assert sorted(on_gpu) == ["ALLREDUCE large", "ALLREDUCE small"], on_gpu
    ways = {name: event["name"] for name, event in transfers.items()}
    assert ways == {"large": "CUDA_IPC_ALLREDUCE", "small": small}, ways
    assert on_gpu["ALLREDUCE large"]["ts"] > transfers["large"]["ts"] + 100_000, (on_gpu, transfers)
    assert 0 < on_gpu["ALLREDUCE large"]["dur"] < 900_000, on_gpu  # without the second that the operation waited
    # The staged operation itself waits for both seconds.
    assert 0 < on_gpu["ALLREDUCE small"]["dur"] < 10_000_000, on_gpu


def faults(driver: Mapping[str, str], fault: str) -> dict[int, tuple[float, str, str]]:
    """Return, by rank, how many seconds it took to shut down, its error text, and its objects left on the device."""
    with PlainJob([*PROGRAM, "fault", fault], "a:3", {**driver, **LATE}) as job:
        codes = job.wait(limit_s=40)
        printed = {rank: job.printed(rank) for rank in range(3)}
    said = re.compile(r"shut down in (.*) s: (.*); left (.*)", re.DOTALL)
    found = {rank: said.search(text) for rank, text in printed.items()}
    ended = [rank for rank, code in enumerate(codes) if code == 0]
    assert [rank for rank, match in found.items() if match] == ended, (codes, printed)
    return {rank: (float(match[1]), match[2], match[3].strip()) for rank, match in found.items() if match}


def test_a_kernel_that_goes_wrong_is_told_in_the_drivers_words(driver):
    told = faults(driver, "kernel")
    assert sorted(told) == [0, 1, 2]
    for rank, (seconds, text, _) in told.items():
        assert "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered" in text, told
        assert re.search(r"\brank 1\b", text) or rank == 1, told
        assert seconds < 20, told


@pytest.mark.parametrize("fault", ["killed idle", "killed at work"])
def test_the_others_hear_of_a_killed_rank_and_shut_down(driver, fault):
    told = faults(driver, fault)
    assert sorted(told) == [0, 2]
    for seconds, text, left in told.values():
        assert re.search(r"\brank 1\b", text), told
        assert seconds < 20, told
        assert left == "{'memory': 1, 'streams': 1}", told  # the test's own objects


def test_the_doctor_uses_the_gpu(driver):
    done = doctor(driver)
    ways = {finding["name"]: finding for finding in done["sections"]["CUDA"]}
    assert ways["driver"]["value"].startswith("CUDA "), ways
    assert ways["peer access"]["value"] == "2 of 2 pairs of GPUs", ways
    assert ways["sharing"]["value"].startswith("processes take turns on a GPU"), ways
    assert "nvidia-cuda-mps-control -d" in ways["sharing"]["advice"], ways
    for name in ("memory of the GPU", "host memory"):
        assert re.fullmatch(r"works: .* for 4 KiB, .* for 16 MiB, two ranks on one GPU", ways[name]["value"]), ways


def test_the_doctor_says_why_gpus_cannot_be_shared(driver):
    done = doctor({**driver, "STANDIN_FAIL": "cuIpcOpenMemHandle_v2=201"})
    (finding,) = [finding for finding in done["sections"]["CUDA"] if finding["name"] == "memory of the GPU"]
    assert "could not reach another rank's memory from GPU 0" in finding["value"], finding
    assert "--ipc=host" in finding["advice"], finding


def doctor(driver: Mapping[str, str]) -> Any:
    # The doctor stops each trial after 20 s, but on a busy machine two ranks may take longer to start.
    patient = f"from horovod.tools import doctor; doctor.examine.__defaults__ = ({patience(20)},)"
    command = [sys.executable, "-c", f"{patient}\nfrom horovod.tools.cli import main; main()", "doctor", "--json"]
    done = subprocess.run(command, env=os.environ | dict(driver), capture_output=True, text=True, timeout=patience(120))
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    return json.loads(done.stdout)


# ---- kernels


def test_the_kernels_are_of_an_old_instruction_set_and_up_to_date():
    engine = ROOT / "engine"
    made = (engine / "devices" / "kernels_ptx.inc").read_text()
    ((major, minor),) = re.findall(r'^"\.version (\d+)\.(\d+)\\n"$', made, re.MULTILINE)
    (target,) = re.findall(r'^"\.target sm_(\d+)\\n"$', made, re.MULTILINE)
    assert (int(major), int(minor)) <= (7, 0)
    assert int(target) <= 75
    (sources,) = re.findall(r"cat (.*) \| sed", (ROOT / "scripts" / "device-kernels").read_text())
    text = "".join((engine / source).read_text() for source in sources.split())
    code = "".join(re.sub("//.*", "", text).split())  # the fingerprint ignores comments
    fingerprint = hashlib.sha256(code.encode()).hexdigest()[:16]
    assert f"({fingerprint})" in made, "run scripts/device-kernels"
    kernels = re.findall(r"^HVD_KERNEL\((\w+),", (engine / "devices" / "kernels.cu").read_text(), re.MULTILINE)
    assert len(kernels) == 22
    for kernel in kernels:
        assert f'".visible .entry {kernel}(\\n"' in made, kernel
