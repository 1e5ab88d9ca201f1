# SPDX-License-Identifier: Apache-2.0
"""A rank dies, leaves or freezes inside hvd.init(), after the rendezvous: the others learn in time which rank."""

import os
import signal
from contextlib import suppress

import psutil
import pytest
from faultkit.jobs import Job, LaunchedJob, PlainJob, program
from testkit import variables
from testkit.awaiting import await_that
from testkit.families import is_alive

TCP = {"HOROVOD_SHARED_MEMORY": "0"}
TIMEOUT_S = 2
LIMIT_S = {"kill": 2, "exit": 2, "stop": TIMEOUT_S + 3}


def by_themselves(command: list[str], hosts: str, env: dict[str, str]) -> Job:
    """Start a job with plain variables only, in which rank 0 serves the rendezvous."""
    return PlainJob(command, hosts, env | variables.self_served(variables.free_port()))


def by_horovodrun(command: list[str], hosts: str, env: dict[str, str]) -> Job:
    return LaunchedJob(command, variables.size_of(hosts), ["-H", hosts], {**env, "HOROVOD_SIMULATE_HOSTS": "1"})


def await_end(pid: int) -> None:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        await_that(lambda: not is_alive(process), 20, lambda: f"process {pid} still runs")


def check_end(job: Job, victim: int, fault: str) -> None:
    """Check the exit codes, and that horovodrun reports the right failure first."""
    if len(job.processes) > 1:
        if fault == "stop":
            os.kill(job.processes[victim].pid, signal.SIGKILL)
        code = 0 if fault == "exit" else -signal.SIGKILL
        assert job.wait(limit_s=20) == [code if rank == victim else 1 for rank in range(job.size)]
        return
    if fault == "stop":  # otherwise horovodrun would wait for the stopped rank
        for failure in job.reports.of("failed").values():
            await_end(failure["pid"])
        with suppress(ProcessLookupError):  # the process is gone if horovodrun did not wait longer
            os.kill(job.reports.of("reached")[victim]["pid"], signal.SIGKILL)
    assert job.wait(limit_s=20) == [128 + signal.SIGKILL if fault == "kill" else 1]
    shown = job.printed()
    report = shown[shown.index("horovodrun: rank") :].splitlines()[0]
    if fault == "kill":
        assert report.startswith(f"horovodrun: rank {victim} "), shown
    else:  # the report names one of the ranks that noticed the loss
        assert not report.startswith(f"horovodrun: rank {victim} "), shown
        assert f": rank {victim} is lost (on host" in shown, shown


@pytest.mark.promise
@pytest.mark.parametrize(
    ("start", "phase", "fault", "hosts", "victim", "env"),
    [
        (by_themselves, "met", "kill", "a:4", 1, {}),
        (by_themselves, "met", "exit", "a:4", 0, {}),
        (by_horovodrun, "met", "exit", "a:2,b:2", 2, {}),
        (by_horovodrun, "connect", "stop", "a:2", 1, TCP),
        (by_themselves, "sendto", "exit", "a:4", 2, TCP),
        (by_themselves, "sendmsg", "stop", "a:4", 0, {}),
        (by_horovodrun, "sendmsg", "kill", "a:4", 3, TCP),
        (by_themselves, "recvmsg", "kill", "a:2,b:2", 3, {}),
    ],
)
def test_a_rank_that_is_lost_inside_init_is_named_to_all(start, phase, fault, hosts, victim, env):
    command = program("meet", str(victim), phase, fault)
    with start(command, hosts, {"HOROVOD_PEER_TIMEOUT_SECONDS": str(TIMEOUT_S), **env}) as job:
        since = job.reports.await_event("reached", [victim])[victim]
        survivors = [rank for rank in range(job.size) if rank != victim]
        host = "ab"[victim // 2] if "," in hosts else "a"
        for failure in job.failed(survivors, LIMIT_S[fault] + 5).values():
            assert failure["at"] - since["at"] < LIMIT_S[fault], failure
            assert f"rank {victim} is lost (on host '{host}'):" in failure["text"], failure
        check_end(job, victim, fault)
