# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs on hosts that do not reach each other, while the launcher reaches all of them (faults 13 and 37).

HOROVOD_TEST_CUTS (3) and HOROVOD_TEST_SEED make the random cuts longer, or others.
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
PEER_TIMEOUT_S = 4  # a rank of a busy machine is not silent for so long
QUICK = {"HOROVOD_PEER_TIMEOUT_SECONDS": str(PEER_TIMEOUT_S), "HOROVOD_CUT_PROBE_SECONDS": "1"}
PAIR = ("h2", "h3")
LISTENING, SSH_PORT = "0A", 22  # as /proc/net/tcp has them
# Ports are filtered before the first collective, so that workers cannot connect at all.
SLOW_TO_BEGIN = {"TEST_PAUSE_AFTER_INIT": "0.5"}


class CutJob(ElasticJob):
    """Its steps are on record, so that it is known what was trained, and by whom."""

    def __init__(self, hosts, folder, size, *flags, env=None):
        self._log = folder / "steps"
        env = {"HOROVOD_SSH_COMMAND": hosts.ssh, "TEST_STEPS": str(self._log), **QUICK, **(env or {})}
        super().__init__("numpy", folder, size, *flags, prefix=hosts.inside("h1"), env=env)

    def _newest(self):
        """Generation and size of the newest generation that has made a step."""
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
        """Let it end, with the weights that its steps give, and with one group that trains at a time."""
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
    """Return the IPv4 ports on which workers of this process's host listen: all but sshd's."""
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].partition(":")[2], 16) for row in rows if row[3] == LISTENING} - {SSH_PORT}


@contextmanager
def filtered_ports(network, pid):
    """Drop what h3 sends to wherever this worker on h2 listens, in every generation. All other ports are open."""
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
        for cut in (full_cut, one_way_cut):  # h2, h1 and h3 are in a line
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

        for _ in range(2):  # a link that flaps
            with full_cut(network):
                time.sleep(PEER_TIMEOUT_S)
            time.sleep(0.5)
        assert pids(job.settled_with(3)) == pids(first)
        job.finish_exactly(3)


@pytest.mark.timeout(120 + 30 * CUTS)
def test_faults_13_and_37_random_cuts_end_in_a_whole_job_with_exact_weights(hosts, start):
    """The launcher has no workers of its own, the hosts have two and one."""
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
