# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs on several hosts, which come, go, and are lost with all that runs on them."""

import sys
import time

import psutil
import pytest
from faultkit.elastic import ElasticJob, of_rank
from testkit.families import living

SILENCE_S = 10
SLACK_S = 8  # of a busy machine


@pytest.fixture
def elastic(hosts, tmp_path):
    """Starts a job whose launcher runs on h1."""

    def start(size, *flags):
        place = {"prefix": hosts.inside("h1"), "env": {"HOROVOD_SSH_COMMAND": hosts.ssh}}
        return ElasticJob("numpy", tmp_path, size, *flags, **place)

    return start


def pids(reports):
    return {birth: one["pid"] for birth, one in reports.items()}


def on_host(name, reports):
    return [one for one in reports.values() if psutil.Process(one["pid"]).environ()["HOROVOD_HOSTNAME"] == name]


def agent_of(worker):
    """Below it is the guardian of its host, of which the worker is a child."""
    return psutil.Process(worker["pid"]).parent().parent()


def test_fault_4_hosts_come_go_and_are_cut_off(hosts, elastic, tmp_path):
    def offer(*names):
        (tmp_path / "new").write_text("\n".join(names))
        (tmp_path / "new").rename(tmp_path / "hosts")

    offer("h1:1")
    script = f"cat {tmp_path}/hosts"
    flags = ("--min-np", "1", "--max-np", "4", "--start-timeout", "60", "--host-discovery-script", script)
    with elastic(1, *flags) as job:
        first = job.stepped(0, 1)
        offer("h1:1", "h2:2", "h3:1", "nosuch:1")
        every = job.stepped_with(4, first)
        assert pids(every)[0] == pids(first)[0]

        killed = of_rank(3, every)
        job.kill(killed)
        mended = job.stepped_with(4, every)  # in the slot that it had: its host is not to blame
        left = {birth: pid for birth, pid in pids(every).items() if birth != killed["birth"]}
        assert pids(mended).items() >= left.items()

        (on_h3,) = on_host("h3", mended)
        agent = agent_of(on_h3)
        offer("h1:1", "h2:2")
        without = job.stepped_with(3, mended)
        assert not living([agent], limit_s=20), "an agent without work ends"

        lost = [psutil.Process(one["pid"]) for one in on_host("h2", without)]
        assert len(lost) == 2
        hosts.network.cut("h2")
        try:
            cut = time.monotonic()
            alone = job.stepped_with(1, without)
            assert alone[0]["at"] - cut < SILENCE_S + SLACK_S
            assert not living(lost, limit_s=SLACK_S), "a host that nobody reaches frees itself"
        finally:
            hosts.network.mend("h2")
        job.finish(1)
        shown = job.printed()
    assert shown.count("host nosuch cannot be used: exit code 255") == 1
    assert "its slot on h3 is gone" in shown
    assert "host h2 is lost: nothing was heard of it" in shown
    assert "(worker" in shown
    assert "Traceback" not in shown


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
