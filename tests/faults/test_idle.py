# SPDX-License-Identifier: Apache-2.0
"""An idle engine uses almost no processor time; hvd.init() does not change the program's threads or settings."""

import pytest
from faultkit.jobs import PlainJob, program


@pytest.mark.parametrize(
    ("hosts", "env"),
    [("a:2", {}), ("a:2", {"HOROVOD_SHARED_MEMORY": "0"}), ("a:1,b:1", {})],
    ids=["shared memory", "tcp", "hosts"],
)
def test_an_idle_engine(hosts, env):
    with PlainJob(program("idle"), hosts, env) as job:
        assert set(job.wait(limit_s=50)) == {0}, job.printed_by_all()
        reports = job.reports.await_event("done", range(job.size))
    for report in reports.values():
        assert report["changed"] == {}
        assert len(report["added"]) == 1, report["added"]
        assert all(cores == report["whole"] for cores in report["affinity"].values()), report
        assert report["left"] == 0
        assert report["cpu"] < 0.01 * report["idle_s"], report  # one percent of a core
        # A few heartbeats a second, and no polling.
        assert sum(report["woken"].values()) <= 20 * report["idle_s"], report


def test_who_has_told_something_to_a_rank_that_had_nothing_to_tell_hears_that_it_is_alive():
    with PlainJob(program("one_sided"), "a:2,b:2", {"HOROVOD_PEER_TIMEOUT_SECONDS": "4"}) as job:
        assert set(job.wait(limit_s=50)) == {0}, job.printed_by_all()
        reports = job.reports.await_event("done", range(job.size))
    assert {report["sum"] for report in reports.values()} == {4.0}
