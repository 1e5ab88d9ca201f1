# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs with spares, and workers that are preempted, stuck, lost together, or lost below the minimum."""

import signal
from contextlib import suppress

import psutil
from faultkit.elastic import ElasticJob, OfferedHosts, of_rank
from faultkit.jobs import LaunchedJob, program
from testkit.awaiting import await_that


def family(job):
    """Return the running workers by birth id."""
    found = {}
    for process in psutil.Process(job.processes[0].pid).children(recursive=True):
        try:
            birth = process.environ().get("HOROVOD_BIRTH_ID")
        except psutil.Error:
            continue
        if birth is not None:
            found[int(birth)] = process
    return found


def waiting_spare(job, members):
    """Wait until a worker beyond the members waits for the driver, that is, has a connection and sleeps. Return it."""

    def find():
        for birth, process in family(job).items():
            with suppress(psutil.Error):
                if birth not in members and process.net_connections() and process.status() == psutil.STATUS_SLEEPING:
                    return birth, process
        return None

    return await_that(find, 60, lambda: f"no spare waits\n{job.printed_by_all()}")


def test_a_spare_takes_a_lost_place_and_then_that_of_a_worker_that_is_preempted(tmp_path):
    with ElasticJob("numpy", tmp_path, 2, "--min-np", "1", "--spares", "1") as job:
        first = job.stepped(0, 2)
        birth, spare = waiting_spare(job, first)
        assert spare.num_threads() == 1, "no thread of the engine"
        job.kill(of_rank(1, first))
        second = job.stepped(1, 2)
        assert set(second) == {of_rank(0, first)["birth"], birth}
        another, _ = waiting_spare(job, {*first, *second})
        preempted = of_rank(0, second)
        job.kill(preempted, signal.SIGTERM)
        third = job.stepped(2, 2)
        assert set(third) == {birth, another}
        assert of_rank(0, third)["birth"] == birth
        assert of_rank(0, third)["steps"] > max(one["steps"] for one in second.values()), "nothing was rolled back"
        job.finish(2)
        shown = job.printed()
    assert f"came: worker {birth} on localhost as rank 1; spare: worker {another} on localhost" in shown
    assert f"left: rank 0 (worker {preempted['birth']} on localhost): SIGTERM: preempted" in shown
    assert "Traceback" not in shown


class StuckJob(ElasticJob):
    def __init__(self, folder, size, *flags):
        self.stop, self._hang = folder / "stop", folder / "hang"
        command = program("elastic_stuck", str(self._hang), str(self.stop))
        LaunchedJob.__init__(self, command, size, flags, {"OMP_NUM_THREADS": "1"})

    def hang(self):
        self._hang.touch()


def test_a_worker_that_is_stuck_is_reported_with_its_stack_and_replaced(tmp_path):
    # Half of this timeout is left for the worker's answer, on a busy machine.
    flags = ("--min-np", "1", "--spares", "1", "--progress-timeout-seconds", "5", "--replace-stuck-workers")
    with StuckJob(tmp_path, 2, *flags) as job:
        first = job.stepped(0, 2)
        birth, _ = waiting_spare(job, first)
        if birth == 1:  # worker 1 was the slowest and became the spare
            job.kill(of_rank(1, first))
            first = job.stepped(1, 2)
            waiting_spare(job, {*first, 0, 1, 2})
        generation = of_rank(0, first)["generation"]
        job.hang()
        second = job.stepped(generation + 1, 2)
        assert 1 not in second
        job.finish(2)
        shown = job.printed()
    stuck = shown[shown.index("(worker 1 on localhost) makes no progress: no operation ended") :]
    assert "it is killed and replaced; this is where it is:" in stuck
    assert "in read_from_a_disk_that_is_gone" in stuck
    assert "(worker 1 on localhost): it made no progress for" in stuck


def test_fault_8_two_are_lost_at_once_and_one_more_while_the_rest_meets(tmp_path):
    with ElasticJob("numpy", tmp_path, 4, "--min-np", "1") as job:
        first = job.stepped(0, 4)
        for rank in (0, 2):
            job.kill(of_rank(rank, first))
        job.kill(of_rank(3, first))  # while the others have hardly noticed the first loss
        survivor = of_rank(1, first)

        def all_are_back(reports):
            found = {}
            for one in reports:
                if one["event"] == "stepped" and one["size"] == 4 and one["generation"] > 0:
                    found.setdefault(one["generation"], {})[one["birth"]] = one
            return next((by_birth for by_birth in found.values() if len(by_birth) == 4), None)

        last = job.reports.await_that(all_are_back, 60)
        assert last[survivor["birth"]]["pid"] == survivor["pid"]
        assert of_rank(0, last)["birth"] == survivor["birth"]
        job.finish(4)


def test_faults_9_and_10_below_the_minimum_by_a_graceful_leave_with_a_script_that_talks_nonsense_and_back(tmp_path):
    offer = OfferedHosts(tmp_path, "localhost:2")
    with ElasticJob("numpy", tmp_path, 2, "--min-np", "2", *offer.flags) as job:
        first = job.stepped(0, 2)
        offer("localhost:1")
        job.await_printed("1 of at least 2 workers are ready: waiting for more")
        offer("$(reboot); nonsense")
        job.await_printed("the last good list of hosts is kept")
        offer()
        job.await_printed("printed no hosts; the last good list of hosts is kept")
        offer("localhost:2")
        second = job.stepped(1, 2)
        assert set(second) == {0, 2}
        assert second[0]["pid"] == first[0]["pid"]
        assert min(one["steps"] for one in second.values()) > first[0]["steps"]
        job.finish(2)
        shown = job.printed()
    assert shown.count("the last good list of hosts is kept") == 2
    assert "left: rank 1 (worker 1 on localhost): its slot on localhost is gone" in shown
