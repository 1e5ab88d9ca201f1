# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs on several hosts that are added, removed, and lost together with all of their processes.

HOROVOD_TEST_FROZEN (3) is the number of jobs in which an agent is frozen. HOROVOD_TEST_SEED chooses the agent and the
time.
"""

import os
import random
import re
import sys
import time
from contextlib import ExitStack, suppress

import psutil
import pytest
from faultkit.elastic import ElasticJob, OfferedHosts, of_rank, pids
from testkit.awaiting import await_that
from testkit.families import is_alive, living
from testkit.speed import patience

from horovod.launcher.elastic.state import LOSS_S

SILENCE_S = 10
SLACK_S = 8  # extra time for a busy machine
FROZEN_AGENTS = int(os.environ.get("HOROVOD_TEST_FROZEN", "3"))
JOBS_AT_ONCE = 3
SEED = int(os.environ.get("HOROVOD_TEST_SEED", random.SystemRandom().randrange(1 << 32)))


@pytest.fixture
def elastic(hosts, tmp_path):
    """Return a function that starts a job whose launcher runs on h1."""

    def start(size, *flags):
        place = {"prefix": hosts.inside("h1"), "env": {"HOROVOD_SSH_COMMAND": hosts.ssh}}
        return ElasticJob("numpy", tmp_path, size, *flags, **place)

    return start


def on_host(name, reports):
    return [one for one in reports.values() if psutil.Process(one["pid"]).environ()["HOROVOD_HOSTNAME"] == name]


def agent_of(worker):
    """Return the worker's agent. It is the parent of the guardian of its host, which is the worker's parent."""
    return psutil.Process(worker["pid"]).parent().parent()


def test_fault_4_hosts_come_go_and_are_cut_off(hosts, elastic, tmp_path):
    offer = OfferedHosts(tmp_path, "h1:1")
    flags = ("--min-np", "1", "--max-np", "4", "--start-timeout", "60", *offer.flags)
    with elastic(1, *flags) as job:
        first = job.stepped(0, 1)
        offer("h1:1", "h2:2", "h3:1", "nosuch:1")
        every = job.stepped_with(4, first)
        assert pids(every)[0] == pids(first)[0]

        killed = of_rank(3, every)
        job.kill(killed)
        mended = job.stepped_with(4, every)  # the replacement gets the same slot, because the host did not fail
        left = {birth: pid for birth, pid in pids(every).items() if birth != killed["birth"]}
        assert pids(mended).items() >= left.items()

        (on_h3,) = on_host("h3", mended)
        agent = agent_of(on_h3)
        offer("h1:1", "h2:2")
        without = job.stepped_with(3, mended)
        assert not living([agent], patience(20)), "an agent without work ends"

        lost = [psutil.Process(one["pid"]) for one in on_host("h2", without)]
        assert len(lost) == 2
        hosts.network.cut("h2")
        try:
            cut = time.monotonic()
            alone = job.stepped_with(1, without)
            assert alone[0]["at"] - cut < SILENCE_S + patience(SLACK_S)
            assert not living(lost, patience(SLACK_S)), "a host that nobody reaches frees itself"
        finally:
            hosts.network.mend("h2")
        job.finish(1)
        shown = job.printed()
    assert shown.count("host nosuch cannot be used: exit code 255") == 1
    assert "its slot on h3 is gone" in shown
    assert "host h2 is lost: nothing was heard of it" in shown
    assert "(worker" in shown
    assert "Traceback" not in shown


@pytest.mark.promise
def test_faults_5_and_6_the_host_of_rank_0_is_lost_and_then_the_launcher(elastic):
    with elastic(3, "--min-np", "2", "-H", "h2:1,h3:2") as job:
        first = job.stepped(0, 3)
        agent_of(of_rank(0, first)).kill()
        second = job.stepped_with(2, first)
        assert pids(second).items() <= pids(first).items()
        family = [psutil.Process(pid) for pid in pids(second).values()]
        family += [agent_of(of_rank(0, second))]
        job.processes[0].kill()
        assert not living(family, limit_s=5)
        assert "host h2 is lost: the connection to its agent was closed" in job.printed()


def test_faults_3_and_14_a_worker_that_could_not_be_killed_leaves_when_it_thaws(elastic):
    """Freeze a whole host, including the processes that would kill the worker."""
    with elastic(2, "--min-np", "1", "-H", "h1:1,h2:1") as job:
        first = job.stepped(0, 2)
        worker = psutil.Process(of_rank(1, first)["pid"])
        guardian, agent = worker.parent(), agent_of(of_rank(1, first))
        for process in (worker, guardian, agent):
            process.suspend()
        frozen = time.monotonic()
        try:
            alone = job.stepped_with(1, first)
            assert alone[0]["at"] - frozen < SILENCE_S + patience(SLACK_S)
            worker.resume()
            await_that(lambda: not is_alive(worker), 20)  # it is a zombie until its parent is resumed
        finally:
            for process in (guardian, agent):
                process.resume()
        job.finish(1)
        shown = job.printed()
    assert "worker 1 came too late, and was sent away" in shown
    assert "Traceback" not in shown


class FrozenAgent:
    """A job of three workers on two hosts. The agent of one rank's host is frozen while they train."""

    def __init__(self, stack, hosts, folder, chance, rank):
        folder.mkdir()
        place = {"prefix": hosts.inside("h1"), "env": {"HOROVOD_SSH_COMMAND": hosts.ssh}}
        # A lost host does not return before the job ends, which waits for the checks of other jobs.
        flags = ("--min-np", "1", "-H", "h2:1,h3:2", "--blacklist-cooldown-range", "200", "200")
        self.job = stack.enter_context(ElasticJob("numpy", folder, 3, *flags, **place))
        self.first = self.job.stepped(0, 3)
        self.agent = agent_of(of_rank(rank, self.first))
        self.lost = {birth for birth, one in self.first.items() if agent_of(one) == self.agent}
        self._workers = [psutil.Process(self.first[birth]["pid"]) for birth in self.lost]
        time.sleep(chance.uniform(0, 0.5))
        self.agent.suspend()
        self.frozen = time.monotonic()
        stack.callback(self.thaw)

    def thaw(self):
        with suppress(psutil.NoSuchProcess):
            self.agent.resume()

    def check(self):
        staying = {birth: one for birth, one in self.first.items() if birth not in self.lost}
        others = self.job.stepped_with(len(staying), self.first)
        assert of_rank(0, others)["at"] - self.frozen < SILENCE_S + LOSS_S + patience(SLACK_S)
        assert pids(others) == pids(staying)
        assert not living(self._workers, patience(SLACK_S))
        self.thaw()
        self.job.finish(1)
        shown = self.job.printed()
        assert re.search("host h[23] is lost: nothing was heard of it", shown)
        assert "Traceback" not in shown


@pytest.mark.parametrize("batch", range(0, FROZEN_AGENTS, JOBS_AT_ONCE))
def test_members_leave_a_host_of_which_only_the_agent_is_frozen(batch, hosts, tmp_path):
    """Check that members leave the host, or they would keep training with workers that the driver has lost."""
    print(f"HOROVOD_TEST_SEED={SEED}")
    chance = random.Random(f"{SEED} {batch}")
    with ExitStack() as stack:
        numbers = range(min(JOBS_AT_ONCE, FROZEN_AGENTS - batch))
        # One job of each batch freezes the agent of rank 0's host.
        ranks = [0, *(chance.randrange(3) for _ in numbers[1:])]
        jobs = [FrozenAgent(stack, hosts, tmp_path / str(number), chance, ranks[number]) for number in numbers]
        for job in jobs:
            job.check()


def test_too_few_hosts_that_answer_are_an_error_at_once(elastic):
    with elastic(2, "--min-np", "1", "-H", "h2:1,nosuch:1") as job:
        assert job.wait(limit_s=60) == [1]
        shown = job.printed()
    assert "no agent could be started on 1 of 2 hosts:\n  nosuch: exit code 255" in shown


def test_an_elastic_function_on_other_hosts(on_h1):
    program = """
import horovod, socket
def place():
    import horovod.numpy as hvd
    hvd.init()
    return f"{hvd.rank()} on {socket.gethostname()}"
print(horovod.run(place, num_proc=2, min_num_proc=2, hosts="h2:1,h3:1"))
"""
    done = on_h1(sys.executable, "-c", program)
    assert done.stdout == "['0 on h2', '1 on h3']\n", done.stderr
