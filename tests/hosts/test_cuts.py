# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs on hosts that cannot reach each other, while the launcher reaches all of them (faults 13 and 37).

HOROVOD_TEST_CUTS (3) and HOROVOD_TEST_SEED change the number of random cuts and their choice.
"""

import os
import random
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from faultkit.elastic import ElasticJob, pids
from testkit.speed import patience

CUTS = int(os.environ.get("HOROVOD_TEST_CUTS", "3"))
SEED = int(os.environ.get("HOROVOD_TEST_SEED") or time.time_ns() % 1_000_000)
LIMIT_S = 60
PEER_TIMEOUT_S = 4  # long enough for ranks on a busy machine
QUICK = {"HOROVOD_PEER_TIMEOUT_SECONDS": str(PEER_TIMEOUT_S), "HOROVOD_CUT_PROBE_SECONDS": "1"}
PAIR = ("h2", "h3")
LISTENING, SSH_PORT = "0A", 22  # values as in /proc/net/tcp
# A pause that gives the test time to filter ports before the first collective, so that workers cannot connect at all.
SLOW_TO_BEGIN = {"TEST_PAUSE_AFTER_INIT": "0.5"}


class CutJob(ElasticJob):
    """Elastic job that records its steps, so that the test knows which workers trained when."""

    def __init__(self, hosts, folder, size, *flags, env=None):
        self._log = folder / "steps"
        env = {"HOROVOD_SSH_COMMAND": hosts.ssh, "TEST_STEPS": str(self._log), **QUICK, **(env or {})}
        super().__init__("numpy", folder, size, *flags, prefix=hosts.inside("h1"), env=env)

    def _newest(self):
        """Return the generation and the size of the newest generation that has made a step."""
        found = [one for one in self.reports.all if one["event"] == "stepped"]
        return max((one["generation"], one["size"]) for one in found)

    def settled_with(self, size):
        """Wait until a generation of this size has trained for longer than a cut stays unnoticed."""
        give_up = time.monotonic() + patience(LIMIT_S)
        newest, since = (-1, 0), time.monotonic()
        while newest[1] != size or time.monotonic() < since + PEER_TIMEOUT_S + 1:
            assert time.monotonic() < give_up, f"not {size} workers\n{self.printed_by_all()}"
            self.reports.next(0.1)
            if self._newest() != newest:
                newest, since = self._newest(), time.monotonic()
        return self.stepped(*newest)

    def finish_exactly(self, size):
        """End the job. Check that the weights match its steps, and that only one group of workers trained at a time."""
        done = self.finish(size)[0]
        assert done["weights"] == 8 * sum(7 * step + 3 for step in range(done["steps"]))
        steps = sorted(tuple(map(int, line.split())) for line in self._log.read_text().splitlines())
        generations = [generation for _, generation, _ in steps]
        assert generations == sorted(generations), "two groups have trained at a time"
        assert "killed" not in self.printed()
        assert "Traceback" not in self.printed()


@pytest.fixture
def start(hosts, tmp_path):
    def begin(size, *flags, **options):
        return CutJob(hosts, tmp_path, size, *flags, **options)

    yield begin
    hosts.network.mend_between(*PAIR)


@contextmanager
def one_way_cut(network):
    network.cut_way(*PAIR)
    try:
        yield
    finally:
        network.mend_way(*PAIR)


@contextmanager
def full_cut(network):
    network.cut_between(*PAIR)
    try:
        yield
    finally:
        network.mend_between(*PAIR)


def listening_ports(pid):
    """Return the IPv4 ports on which workers of this process's host listen, without that of sshd."""
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].partition(":")[2], 16) for row in rows if row[3] == LISTENING} - {SSH_PORT}


@contextmanager
def filtered_ports(network, pid):
    """Drop packets from h3 to every port on which this worker on h2 listens, in every generation."""
    closed = set()
    is_over = threading.Event()

    def watch():
        while not is_over.wait(0.01):
            for port in listening_ports(pid) - closed:
                network.cut_way("h3", "h2", port)
                closed.add(port)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        for port in closed:
            network.mend_way("h3", "h2", port)


def test_fault_37_two_of_three_hosts_do_not_reach_each_other(hosts, start):
    network = hosts.network
    with start(3, "--min-np", "1", "-H", "h1:1,h2:1,h3:1", env=SLOW_TO_BEGIN) as job:
        whole = first = job.stepped(0, 3)
        for cut in (full_cut, one_way_cut):  # the hosts are in a row: h2, h1, h3
            with cut(network):
                rest = job.stepped_with(2, whole, LIMIT_S)
                assert {birth: first[birth]["pid"] for birth in (0, 1)} == pids(rest)
            whole = job.stepped_with(3, rest, LIMIT_S)
        shown = job.printed()
        assert shown.count("hosts h2 and h3 do not reach each other: 2 workers on h1, h2 go on, and worker 2") == 2
        assert shown.count("hosts h2 and h3 reach each other again") == 2

        with filtered_ports(network, first[1]["pid"]):
            rest = job.stepped_with(2, whole, LIMIT_S)
        assert "workers 1 and 2 do not reach each other: 2 workers on h1, h2 go on" in job.printed()
        job.stepped_with(3, rest, LIMIT_S)
        assert "workers 1 and 2 try to reach each other again" in job.printed()

        for _ in range(2):  # an unstable link
            with full_cut(network):
                time.sleep(PEER_TIMEOUT_S)
            time.sleep(0.5)
        assert pids(job.settled_with(3)) == pids(first)
        job.finish_exactly(3)


@pytest.mark.timeout(120 + 30 * CUTS)
def test_faults_13_and_37_random_cuts_end_in_a_whole_job_with_exact_weights(hosts, start):
    """Cut a job without workers on the launcher's host, and with two and one on the others."""
    print(f"HOROVOD_TEST_SEED={SEED}")
    dice = random.Random(SEED)
    with start(3, "--min-np", "2", "-H", "h2:2,h3:1") as job:
        first = job.stepped(0, 3)
        for _ in range(CUTS):
            with dice.choice([full_cut, one_way_cut])(hosts.network):
                time.sleep(dice.uniform(0.5, 2.5 * PEER_TIMEOUT_S))
            time.sleep(dice.choice([0, dice.uniform(0, 3)]))
            if dice.random() < 0.5:
                assert pids(job.settled_with(3)) == pids(first)
        assert pids(job.settled_with(3)) == pids(first)
        job.finish_exactly(3)
