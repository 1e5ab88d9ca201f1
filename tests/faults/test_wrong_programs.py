# SPDX-License-Identifier: Apache-2.0
"""Programs whose ranks differ: skipped and different collectives, early ends, an error on one rank."""

import re
import signal
import time

from faultkit.jobs import Job, LaunchedJob, PlainJob, program
from testkit.awaiting import await_that
from testkit.speed import patience

WARNING = re.compile(
    r"WARNING: '\S*gradient' has waited (\d+) s: rank 1 of 3 has not submitted it \(last submitted: (.*?)\)"
)


def await_text(job: Job, index: int, pattern: re.Pattern[str], limit_s: float) -> re.Match[str]:
    found = await_that(lambda: pattern.search(job.printed(index)), limit_s, job.printed_by_all)
    assert found
    return found


def test_fault_18_a_late_rank_is_named_once_by_everybody_who_waits():
    env = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}
    with PlainJob(program("stall", "late"), "a:2,b:1", env) as job:
        job.ready()
        for waiting in (0, 2):
            assert "before" in await_text(job, waiting, WARNING, limit_s=20)[2]
        time.sleep(1.5)  # longer than one more look of the inspector, which must not warn again
        job.signal(1, signal.SIGUSR1)
        assert job.wait(limit_s=20) == [0, 0, 0]
        assert [job.printed(rank).count("WARNING") for rank in range(3)] == [1, 0, 1], job.printed_by_all()


# The text after a warning: where the missing rank is.
HERE = re.compile(r"\[horovod\] rank 1, which is missing, is here: (.*\n(?: .*\n)*)")


def test_fault_18_the_warning_is_followed_by_the_stack_of_the_missing_rank():
    env = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}
    with PlainJob(program("stall", "late"), "a:2,b:1", env) as job:
        job.ready()
        for waiting in (0, 2):
            stack = await_text(job, waiting, HERE, limit_s=20)[1]
            assert stack.startswith(f"pid {job.processes[1].pid}, main thread"), stack
            assert "programs/stall.py" in stack, stack
            assert "signal.sigwait" in stack, stack
        job.signal(1, signal.SIGUSR1)
        assert job.wait(limit_s=20) == [0, 0, 0]
        assert [len(HERE.findall(job.printed(rank))) for rank in range(3)] == [1, 0, 1], job.printed_by_all()


def test_fault_18_a_leader_that_is_missing_tells_where_it_is_too():
    env = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}
    with PlainJob(program("stall", "leader"), "a:2", env) as job:
        job.ready()
        stack = await_text(job, 1, re.compile(r"rank 0, which is missing, is here: (.*\n(?: .*\n)*)"), limit_s=20)[1]
        assert "signal.sigwait" in stack, stack
        job.signal(0, signal.SIGUSR1)
        assert job.wait(limit_s=20) == [0, 0]


def test_fault_18_a_missing_rank_that_keeps_the_gil_or_is_frozen_delays_nobody():
    env = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}
    with PlainJob(program("stall", "native"), "a:3", env) as job:
        job.ready()
        for waiting in (0, 2):
            await_text(job, waiting, WARNING, limit_s=20)
            assert "keeps Python's lock" in await_text(job, waiting, HERE, limit_s=20)[1]
        job.signal(1, signal.SIGUSR1)
        assert job.wait(limit_s=20) == [0, 0, 0], job.printed_by_all()
    with PlainJob(program("stall", "late"), "a:3", env | {"HOROVOD_PEER_TIMEOUT_SECONDS": "4"}) as job:
        job.ready()
        job.signal(1, signal.SIGSTOP)
        for waiting in (0, 2):
            await_text(job, waiting, WARNING, limit_s=20)
        failures = job.failed([0, 2], limit_s=20)
        assert {failure["lost_rank"] for failure in failures.values()} == {1}
        job.signal(1, signal.SIGKILL)
        assert job.wait(limit_s=20) == [1, -signal.SIGKILL, 1]


def test_fault_18_a_rank_that_does_something_else_ends_the_job_if_asked():
    env = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    env["HOROVOD_DEADLOCK_CHECK_TIME_SECONDS"] = "0"  # it would report first
    with PlainJob(program("stall", "different"), "a:3", env) as job:
        ready = [report["at"] for report in job.ready().values()]
        failures = job.failed([0, 1, 2], limit_s=20)
        assert job.wait(limit_s=20) == [1, 1, 1]
    for failure in failures.values():
        assert failure["at"] - min(ready) > 1.5, failure  # a rank submits only after its own report
        assert failure["at"] - max(ready) < 8, failure
        assert "not submitted it (last submitted: rank" in failure["text"], failure
        assert "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS" in failure["text"], failure


def test_fault_15_a_rank_that_ends_early_is_named_to_those_who_still_work():
    with LaunchedJob(program("early", "exit"), 3) as job:
        left = job.reports.await_event("leaving", [1])[1]["at"]
        assert job.wait(limit_s=20) == [1]
        assert time.monotonic() - left < patience(10)
        shown = job.printed()
    callers = r"(rank [02] still calls|ranks 0, 2 still call) 'allreduce\.step'"
    assert re.search(
        rf"HorovodInternalError: .*Rank 1 finished while {callers}\. Let all ranks make this call", shown
    ), shown


def test_fault_16_the_error_of_one_rank_is_shown_first_and_whole():
    with LaunchedJob(program("early", "raise"), 3) as job:
        left = job.reports.await_event("leaving", [1])[1]["at"]
        assert job.wait(limit_s=20) == [1]
        assert time.monotonic() - left < patience(10)
        shown = job.printed()
    report = shown[shown.index("horovodrun: rank") :]
    assert report.startswith("horovodrun: rank 1 "), shown
    assert "KeyError: 'a mistake of the user'" in report
    assert shown.count("Traceback") == 1, shown  # the report has only the frames, so this is the rank's own traceback


def test_fault_14_a_worker_of_an_old_generation_is_refused_and_the_job_goes_on():
    with PlainJob(program("loop"), "a:2", {"HOROVOD_GENERATION": "5"}) as job:
        job.ready()
        late = {**job.meeting_point, "HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_GENERATION": "4"}
        job.start(program("loop"), late)
        assert job.processes[2].wait(30) == 1
        text = "rank 1 came with generation 4, but generation 5 has already met: this process is not part of it"
        assert text in job.printed(2)
        job.signal(0, signal.SIGUSR1)
        assert job.wait(limit_s=20) == [0, 0, 1], job.printed_by_all()
