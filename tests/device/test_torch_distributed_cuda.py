# SPDX-License-Identifier: Apache-2.0
"""torch.distributed over the horovod backend on a GPU that ranks share, on a machine that has one."""

import re
import sys
from pathlib import Path

import pytest
import torch
from faultkit.jobs import PlainJob
from testkit.launcher import horovodrun

HERE = Path(__file__).parent
PROGRAM = [sys.executable, str(HERE / "distributed_program.py")]
OVER_NCCL = [sys.executable, str(HERE / "with_nccl.py"), str(HERE / "distributed_program.py")]

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU on this machine")


def check(ranks: int, what: str, program: list[str] = PROGRAM, **env: str) -> str:
    done = horovodrun("-np", str(ranks), *program, what, env=env, limit_s=55)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all checks passed") == ranks, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("ranks", "transport"), [(2, "auto"), (4, "auto"), (2, "staged")])
def test_collectives(ranks: int, transport: str) -> None:
    check(ranks, "collectives", HOROVOD_GPU_TRANSPORT=transport)


def test_collectives_over_nccl() -> None:
    said = check(2, "collectives", OVER_NCCL, HOROVOD_LOG_LEVEL="info")
    assert "CUDA tensors go through NCCL 2." in said, said


@pytest.mark.parametrize("what", ["prompt", "absence"])
def test_operations_over_nccl_without_agreement(what: str) -> None:
    check(2, what, OVER_NCCL)


@pytest.mark.parametrize("ranks", [2, 4])
def test_training_sharding_and_checkpoints(ranks: int) -> None:
    check(ranks, "training")


def test_training_over_nccl() -> None:
    check(2, "training", OVER_NCCL)


@pytest.mark.parametrize(
    ("program", "what"),
    [(PROGRAM, "loss"), (OVER_NCCL, "groups"), (PROGRAM, "messages")],
    ids=["IPC", "NCCL", "messages"],
)
def test_the_others_hear_of_a_killed_rank(program: list[str], what: str) -> None:
    with PlainJob([*program, what], "a:3") as job:
        job.wait(limit_s=55)
        printed = {rank: job.printed(rank) for rank in range(2)}
    for text in printed.values():
        found = re.search(r"lost in (.*) s", text)
        assert found, printed
        assert float(found[1]) < 10, printed
