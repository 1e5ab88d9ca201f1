# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors through NCCL, on a machine that has a GPU: two and four processes share it as if they were hosts."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from faultkit.jobs import PlainJob
from testkit.launcher import horovodrun
from testkit.processes import wait_for_all

HERE = Path(__file__).parent
PROGRAM = [sys.executable, str(HERE / "with_nccl.py")]
SETTINGS = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1", "HOROVOD_LOG_LEVEL": "info"}
SHARED = {"RANKS_PER_GPU": "2"}  # as NCCL and the engine are told

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU on this machine"),
    pytest.mark.timeout(180),
]


def check(ranks: int, *arguments: str, env: Mapping[str, str] = {}) -> None:
    name, *others = arguments
    done = horovodrun("-np", str(ranks), *PROGRAM, str(HERE / name), *others, env={**SETTINGS, **env}, limit_s=150)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all checks passed") == ranks, done.stdout
    assert "CUDA tensors go through NCCL 2." in done.stdout, done.stdout
    assert ("through a GPU's own memory among the ranks that share it" in done.stdout) == bool(env), done.stdout


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_operation_and_type_as_on_the_host(ranks: int) -> None:
    check(ranks, "torch_nccl_program.py", "types")


@pytest.mark.parametrize("ranks", [2, 4])
def test_collectives_on_cuda_tensors(ranks: int) -> None:
    check(ranks, "cuda_program.py")


@pytest.mark.parametrize("ranks", [2, 4])
def test_training_and_sets_that_overlap(ranks: int) -> None:
    check(ranks, "training_program.py", "checks")


@pytest.mark.parametrize("ranks", [3, 4])
def test_ranks_that_share_gpus_as_on_the_host(ranks: int) -> None:
    check(ranks, "torch_nccl_program.py", "types", env=SHARED)


def test_training_and_sets_where_ranks_share_gpus() -> None:
    check(4, "training_program.py", "checks", env=SHARED)


@pytest.mark.parametrize("env", [{}, SHARED], ids=["a GPU each", "shared GPUs"])
def test_a_killed_rank_keeps_nobodys_stream_waiting(env: dict[str, str]) -> None:
    with PlainJob([*PROGRAM, str(HERE / "training_program.py"), "loss"], "a:3", env) as job:
        job.wait(limit_s=90)
        printed = {rank: job.printed(rank) for rank in range(2)}
    for text in printed.values():
        found = re.search(r"lost in (.*) s, (.*) MB given back", text)
        assert found, printed
        assert float(found[1]) < 10, printed


def test_a_frozen_rank_keeps_nobodys_stream_waiting() -> None:
    with PlainJob(
        [*PROGRAM, str(HERE / "torch_nccl_program.py"), "frozen"], "a:3", {"HOROVOD_PEER_TIMEOUT_SECONDS": "5"}
    ) as job:
        wait_for_all(job.processes[:2], limit_s=90)
        printed = {rank: job.printed(rank) for rank in range(2)}
    for text in printed.values():
        found = re.search(r"raised after (.*) s: .*\brank 2\b", text)
        assert found, printed
        assert float(found[1]) < 10, printed
        assert "left" in text, printed
