# SPDX-License-Identifier: Apache-2.0
"""Training on a GPU that ranks share, and the loss of one of them, on a machine that has a GPU."""

import re
import sys
from pathlib import Path

import pytest
import torch
from faultkit.jobs import PlainJob
from testkit.launcher import horovodrun

HERE = Path(__file__).parent
PROGRAM = [sys.executable, str(HERE / "training_program.py")]
OVER_NCCL = [sys.executable, str(HERE / "with_nccl.py"), str(HERE / "training_program.py")]

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU on this machine")


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("transport", ["auto", "staged"])
def test_training(ranks: int, transport: str) -> None:
    env = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1", "HOROVOD_GPU_TRANSPORT": transport}
    done = horovodrun("-np", str(ranks), *PROGRAM, "checks", env=env, limit_s=55)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all checks passed") == ranks, done.stdout


@pytest.mark.parametrize("command", [PROGRAM, OVER_NCCL], ids=["staged", "nccl"])
def test_gradients_of_several_streams(command: list[str]) -> None:
    # Simulate hosts, so that each rank takes the GPU for its own and sends gradients while backward() continues.
    with PlainJob([*command, "streams"], "a:1,b:1") as job:
        codes = job.wait(limit_s=55)
        printed = [job.printed(rank) for rank in range(2)]
    assert codes == [0, 0], printed
    assert all("all checks passed" in text for text in printed), printed


@pytest.mark.alone_on_gpu
def test_a_killed_rank_keeps_nobodys_stream_waiting() -> None:
    with PlainJob([*PROGRAM, "loss"], "a:3") as job:
        job.wait(limit_s=55)
        printed = {rank: job.printed(rank) for rank in range(2)}
    for text in printed.values():
        found = re.search(r"lost in (.*) s, (.*) MB given back", text)
        assert found, printed
        assert float(found[1]) < 5, printed
        assert int(found[2]) >= 256, printed  # at least the arena; more is freed when the lost rank ends


def test_a_kernel_that_goes_wrong_is_told_in_the_drivers_words() -> None:
    with PlainJob([*PROGRAM, "wrong kernel"], "a:3") as job:
        codes = job.wait(limit_s=55)
        printed = {rank: job.printed(rank) for rank in range(3)}
    assert codes[:2] == [0, 0], printed
    assert codes[2] != 0, printed
    # The error comes from torch or from the engine, whichever calls CUDA first after the failure.
    assert re.search(r"GPU 0 .*: CUDA_ERROR_\w+: |CUDA error: ", printed[2]), printed
    for rank in range(2):
        found = re.search(r"heard in (.*) s: (.*)", printed[rank])
        assert found, printed
        assert float(found[1]) < 10, printed
        assert re.search(r"\b[Rr]ank 2\b", found[2]), printed
