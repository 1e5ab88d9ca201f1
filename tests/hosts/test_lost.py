# SPDX-License-Identifier: Apache-2.0
"""Lost hosts, agents and launchers: all other processes end within the deadlines, and nothing is left on any host."""

import re
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from testkit.families import living
from testkit.speed import patience

FOREVER = [sys.executable, str(Path(__file__).with_name("programs") / "forever.py")]


class Job:
    """A job on three hosts with all ranks running; `workers` are their processes by rank."""

    def __init__(self, launch, *flags):
        self.process = launch("-H", "h1:1,h2:2,h3:1", *flags, *FOREVER)
        self.said = []
        self.find_workers()

    def find_workers(self):
        self.workers = {}
        for line in self.process.stdout:
            self.said.append(line)
            if match := re.match(r"\[(\d)\]<stdout>:up (\d+)", line):
                self.workers[int(match[1])] = psutil.Process(int(match[2]))
            if len(self.workers) == 4:
                break
        assert len(self.workers) == 4, "".join(self.said)
        # A worker's parent is the guardian of its host, whose parent is the launcher or an agent.
        self.agents = {rank: self.workers[rank].parent().parent() for rank in (1, 3)}
        family = {*self.workers.values(), *self.agents.values()}
        self.family = family | {worker.parent() for worker in self.workers.values()}
        self.launcher = self.workers[0].parent().parent()

    def end(self, limit_s, promise_s=None):
        """Return the exit code and all output.

        Check that no process of the job is left, after `promise_s` at the latest.
        """
        begin = time.monotonic()
        self.said += self.process.stdout.readlines()
        code = self.process.wait(timeout=limit_s)
        assert time.monotonic() - begin < patience(limit_s), "".join(self.said)
        left = living(list(self.family), patience(5) if promise_s is None else promise_s)
        for one in left:
            one.kill()
        assert not left
        return code, "".join(self.said)


def test_a_job_on_several_hosts_is_restarted_once_as_allowed(launch):
    job = Job(launch, "--max-restarts", "1")
    before = list(job.family)
    job.workers[2].kill()
    job.find_workers()
    assert "restart 1 of 1: rank 2 on h2: killed by signal 9" in "".join(job.said)
    assert not living([one for one in before if one != job.launcher], patience(5))
    job.workers[3].kill()
    code, said = job.end(20)
    assert code == 137
    assert re.search(r"rank 3 \(host h3, pid \d+\) failed first: killed by signal 9", said)


@pytest.fixture
def job(launch):
    return Job(launch)


def test_a_killed_worker_is_named_and_all_ends_are_in_one_table(job):
    job.workers[2].kill()
    code, said = job.end(20)
    assert code == 137
    assert re.search(r"rank 2 \(host h2, pid \d+\) failed first: killed by signal 9", said)
    table = said[said.index("how the workers ended:") :].splitlines()
    assert table[1].split() == ["rank", "host", "how", "it", "ended"]
    assert re.match(r"  2     h2    killed by signal 9 .*\(first\)", table[2])
    assert [line.split()[:2] for line in table[3:6]] == [["0", "h1"], ["1", "h2"], ["3", "h3"]]


def test_a_killed_agent_takes_its_workers_along_and_is_named(job):
    job.agents[3].kill()
    code, said = job.end(20)
    assert code == 255
    assert re.search(r"rank 3 \(host h3, pid \d+\) failed first: its host was lost: the connection to its agent", said)


@pytest.mark.promise
def test_fault_6_a_killed_launcher_leaves_nothing_on_any_host(job):
    job.launcher.kill()
    code, _ = job.end(20, promise_s=5)
    assert code == -signal.SIGKILL


def test_signals_for_the_workers_and_ctrl_c_reach_all_hosts(job):
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        job.launcher.send_signal(number)
        shown = [job.process.stdout.readline() for _ in range(4)]
        assert sorted(shown) == [f"[{rank}]<stdout>:got {number.name}\n" for rank in range(4)]
    job.launcher.send_signal(signal.SIGINT)
    code, said = job.end(20)
    assert code == 130
    assert "SIGINT: the workers have 5 s to end" in said


def test_an_unplugged_host_frees_itself_and_everybody_else_ends(hosts, job):
    """Cut a host off. No process is notified of that, so it takes ten seconds of silence and a moment to act."""
    hosts.network.cut("h2")
    try:
        code, said = job.end(30)
    finally:
        hosts.network.mend("h2")
    assert code == 255
    assert re.search(r"rank [12] \(host h2, pid \d+\) failed first: its host was lost: nothing was heard of it", said)


def test_a_host_that_is_unplugged_from_the_start_is_named(hosts, horovodrun):
    hosts.network.cut("h2")
    try:
        done = horovodrun("--start-timeout", "8", "-H", "h2:1,h3:1", "true", limit_s=40)
    finally:
        hosts.network.mend("h2")
    assert done.returncode == 1
    assert re.search(r"h2: (no answer within 8 s \(--start-timeout\)|exit code 255)", done.stderr)
    assert "h3:" not in done.stderr
