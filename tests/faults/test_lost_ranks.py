# SPDX-License-Identifier: Apache-2.0
"""A rank dies or freezes during collectives: the others learn in time which rank, over every transport."""

import re
import signal
import time

import pytest
from faultkit.jobs import Job, LaunchedJob, PlainJob, forked, program

SLACK_S = 3  # extra time for a busy machine, beyond the limit that a test checks
TCP = {"HOROVOD_SHARED_MEMORY": "0"}
PLACES = {
    "shared memory": (3, [], {}),
    "shared arrays": (3, [], {"LOOP_IN_SHARED_ARRAYS": "1"}),
    "allgathers": (3, [], {"LOOP_OF_ALLGATHERS": "1"}),
    "gradients": (3, [], {"LOOP_OF_GRADIENTS": "1", "HOROVOD_TORCH_SHARED_GRADIENTS": "1"}),
    "tcp": (3, [], TCP),
    "hosts": (4, ["-H", "a:2,b:2"], {"HOROVOD_SIMULATE_HOSTS": "1"}),
}


def check_failures(job: Job, survivors: list[int], victim: int, since: float, limit_s: float) -> None:
    for rank, failure in job.failed(survivors, limit_s + 5).items():
        if rank not in survivors:
            continue
        assert failure["at"] - since < limit_s, failure
        assert failure["lost_rank"] == victim, failure
        assert re.search(rf"\brank {victim}\b", failure["text"]), failure
        assert re.search(rf"\brank {victim}\b", failure["again"]), failure
        assert failure["again_took"] < 2, failure
        assert failure["shutdown_took"] < 2, failure


@pytest.mark.promise
@pytest.mark.timeout(150)  # for one of the places a process imports torch, and its compiler with the optimizer
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("victim", [0, 2])
def test_fault_1_and_5_a_killed_rank_is_named_to_all(place, victim, forking):
    size, flags, env = PLACES[place]
    needs_torch = place == "gradients"
    command = forked("loop") if needs_torch else program("loop")
    with LaunchedJob(command, size, flags, env | (forking("torch") if needs_torch else {})) as job:
        victim_pid = job.ready(limit_s=120)[victim]["pid"]
        killed = job.signal(victim, signal.SIGKILL)
        check_failures(job, [rank for rank in range(size) if rank != victim], victim, killed, limit_s=2)
        assert job.wait(limit_s=5) == [128 + signal.SIGKILL]
        ended = time.monotonic()
        assert ended - killed < 5
        shown = job.printed()
    report = shown[shown.index("horovodrun: rank") :]
    assert report.startswith(f"horovodrun: rank {victim} "), shown
    if not needs_torch:  # the launcher only knows the client of a forked rank
        assert f"pid {victim_pid}" in report.splitlines()[0]
    assert "killed by signal 9 (SIGKILL)" in report


@pytest.mark.promise
@pytest.mark.parametrize(
    ("hosts", "env", "victim"),
    [("a:3", {}, 1), ("a:3", TCP, 0), ("a:1,b:2", {}, 1)],
    ids=["shared memory", "tcp and rank 0", "leader of a host"],
)
def test_fault_3_a_frozen_rank_is_declared_dead_and_finds_out_when_it_thaws(hosts, env, victim):
    survivors = [rank for rank in range(3) if rank != victim]
    with PlainJob(program("loop"), hosts, {"HOROVOD_PEER_TIMEOUT_SECONDS": "2", **env}) as job:
        job.ready()
        frozen = job.signal(victim, signal.SIGSTOP)
        check_failures(job, survivors, victim, frozen, limit_s=2 + SLACK_S)
        assert min(job.reports.of("failed")[rank]["at"] for rank in survivors) - frozen > 1
        thawed = job.signal(victim, signal.SIGCONT)
        failure = job.failed([victim], limit_s=20)[victim]
        assert failure["at"] - thawed < SLACK_S
        # It learns that it was given up itself, not merely that the others left.
        assert failure["lost_rank"] == victim, failure
        assert job.wait(limit_s=20) == [1, 1, 1]


@pytest.mark.promise
def test_a_frozen_rank_whose_letter_box_is_full_finds_out_when_it_thaws():
    # Rank 1 needs a part of this time for its requests, which fail afterwards.
    with PlainJob(program("flood"), "a:2", {"HOROVOD_PEER_TIMEOUT_SECONDS": "5"}) as job:
        job.ready()
        job.signal(0, signal.SIGSTOP)
        job.signal(1, signal.SIGUSR1)
        job.reports.await_event("flooded", [1])
        assert "no sign of life" in job.failed([1], limit_s=20)[1]["text"]
        job.processes[1].wait(20)
        thawed = job.signal(0, signal.SIGCONT)
        failure = job.failed([0], limit_s=20)[0]  # the notice that rank 1 gave it up found no room in the full inbox
        assert failure["at"] - thawed < SLACK_S
        assert failure["lost_rank"] == 0, failure
        assert re.search(r"rank 0 is lost \(on host 'a'\): .*no sign of life for 5 s", failure["text"]), failure
        assert job.wait(limit_s=20) == [1, 1]
