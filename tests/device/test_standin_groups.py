# SPDX-License-Identifier: Apache-2.0
"""Process groups of torch.distributed over NCCL without a GPU: stand-ins for the driver and for NCCL.

The stand-in runs the launches of a process in order, whatever their communicators. Ranks that launch in different
orders wait for each other without end.
"""

import re
from collections import Counter

import pytest
from devicekit.standins import LATE, STANDIN
from devicekit.timelines import on_gpus
from faultkit.jobs import PlainJob
from testkit.launcher import horovodrun
from testkit.long import in_long
from testkit.preloaded import ANEW, command
from testkit.processes import wait_for_all

pytestmark = pytest.mark.timeout(180)  # the first test compiles the stand-ins
pytest.importorskip("torch")

GROUPS = command(str(STANDIN / "groups_program.py"))
CHECKS = [*command(str(STANDIN / "torch_program.py")), "nccl"]
# Delays with which launches of different worlds overtake each other unless the engine orders them.
SETTINGS = {**LATE, "STANDIN_NCCL_PAUSE_US": "2000", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("ranks", [in_long(2), 4])
def test_every_collective(nccl, ranks):
    done = horovodrun("-np", str(ranks), *CHECKS, env={**nccl, **SETTINGS}, limit_s=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all checks passed") == ranks, done.stdout + done.stderr


@pytest.mark.parametrize(("ranks", "seed"), [(2, 0), in_long(2, 1), (4, 2), in_long(4, 3)])
def test_groups_that_overlap_launch_in_the_order_of_the_program(nccl, ranks, seed):
    done = horovodrun("-np", str(ranks), *GROUPS, "orders", str(seed), env={**nccl, **SETTINGS}, limit_s=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all in order") == ranks, done.stdout + done.stderr


@pytest.mark.parametrize("seed", [4, in_long(5)])
def test_so_do_those_of_which_some_share_gpus(nccl, seed):
    """Check that groups whose ranks share GPUs negotiate their operations, and that others do not."""
    said = said_by(nccl, 4, "orders", str(seed), RANKS_PER_GPU="2")
    assert said.count("all in order") == 4, said


def said_by(nccl: dict[str, str], ranks: int, *program: str, **more: str) -> str:
    done = horovodrun("-np", str(ranks), *GROUPS, *program, env={**nccl, **SETTINGS, **more}, limit_s=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("ranks", "transport"), [in_long(2, "auto"), (4, "auto"), (2, "nccl")])
def test_no_word_is_exchanged_for_an_operation(nccl, ranks, transport):
    said = said_by(nccl, ranks, "silence", "silent", HOROVOD_GPU_TRANSPORT=transport)
    assert said.count("counted") == ranks, said


def test_the_timeline_shows_what_the_gpu_did_without_agreement(nccl, tmp_path):
    said_by(nccl, 2, "silence", "silent", HOROVOD_TIMELINE=str(tmp_path / "groups.json"))
    done_there, _ = on_gpus(tmp_path / "groups.json", "NCCL_")
    kinds = Counter(event["name"].split()[0] for event in done_there)
    assert kinds == {"ALLREDUCE": 41, "ALLGATHER": 40, "BROADCAST": 40}, kinds  # operations of the default group


def test_who_looks_for_mistakes_lets_ranks_agree(nccl):
    env = {**ANEW, "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    said = said_by(nccl, 2, "silence", "agreed", **env)
    assert said.count("counted") == 2, said
    said = said_by(nccl, 2, "mismatch", **env)
    assert said.count("told") == 2, said


def test_where_the_order_of_sums_matters_ranks_agree(nccl):
    said = said_by(nccl, 2, "silence", "agreed", HOROVOD_DETERMINISTIC="1")
    assert said.count("counted") == 2, said


def times_heard(said: str) -> list[float]:
    return [float(found) for found in re.findall(r"heard in (.*?) s", said)]


@pytest.mark.parametrize("ranks", [2, in_long(4)])
def test_a_call_that_a_rank_leaves_out_ends_at_the_groups_time_limit(nccl, ranks):
    times = times_heard(said := said_by(nccl, ranks, "absence"))
    assert len(times) == ranks, said
    assert all(5.5 < it < 20 for it in times), said  # at the latest after twice the limit
    assert said.count(": 0 left") == ranks - 1, said


@pytest.mark.parametrize("ranks", [in_long(2), 4])
def test_a_rank_that_leaves_too_soon_is_named(nccl, ranks, tmp_path):
    times = times_heard(said := said_by(nccl, ranks, "departure", str(tmp_path)))
    assert len(times) == ranks - 1, said
    assert all(it < 20 for it in times), said
    assert said.count("communicators left: 0") == ranks - 1, said


def test_who_leaves_waits_for_ranks_that_come_late_to_what_it_has_launched(nccl):
    """Check that leaving waits as long as the group's time limit allows, which is more than ten seconds."""
    assert said_by(nccl, 2, "late", "14").count("came in time") == 2


@pytest.mark.parametrize("program", ["nobody", "interrupted"])
def test_who_leaves_waits_until_the_groups_time_limit_or_ctrl_c(nccl, program):
    found = re.search(r"left in (.*) s: 0 left", said := said_by(nccl, 2, program))
    assert found, said
    assert float(found[1]) < 15, said
    assert said.count("heard") == 1, said


@pytest.mark.parametrize("ranks", [in_long(2), 3])
def test_who_aborts_waits_for_nobody(nccl, ranks, tmp_path):
    found = re.search(r"gave up in (.*) s: 0 left", said := said_by(nccl, ranks, "abort", str(tmp_path)))
    assert found, said
    assert float(found[1]) < 10, said  # far less than the group's time limit of 100 s
    assert said.count("heard") == ranks - 1, said


def test_a_child_of_a_fork_leaves_the_parents_operations_alone(nccl):
    assert said_by(nccl, 2, "fork").count("went on") == 2


def test_a_frozen_rank_keeps_no_group_waiting(nccl):
    env = {**nccl, **SETTINGS, "HOROVOD_PEER_TIMEOUT_SECONDS": "6"}
    with PlainJob([*GROUPS, "frozen"], "a:3", env) as job:
        wait_for_all([job.processes[0], job.processes[2]], 60)
        printed = {rank: job.printed(rank) for rank in (0, 2)}
    for text in printed.values():
        assert all(it < 15 for it in times_heard(text)), printed
        assert len(times_heard(text)) == 1, printed
        assert "communicators left: 0" in text, printed


def test_a_killed_rank_keeps_no_group_waiting(nccl, tmp_path):
    with PlainJob([*GROUPS, "loss", str(tmp_path)], "a:3", {**nccl, **SETTINGS}) as job:
        survivors = [job.processes[0], job.processes[2]]
        wait_for_all(survivors, 60)
        printed = {rank: job.printed(rank) for rank in (0, 2)}
    for text in printed.values():
        found = re.search(r"heard in (.*) s", text)
        assert found, printed
        assert float(found[1]) < 10, printed
        assert "communicators left: 0" in text, printed
