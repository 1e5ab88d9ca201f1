# SPDX-License-Identifier: Apache-2.0
"""A link that takes 20 ms each way, loses packets and stalls for seconds: the job only takes longer."""

from faultkit.jobs import PlainJob, program
from testkit import variables
from testkit.hosts import Network
from testkit.slow_links import SlowLink

STALL_S = 2.0
# Frame at which the stall begins, of about 2200; a few hundred at most are attempts to reach a rank that starts late.
IN_COLLECTIVES = 700


def test_a_job_completes_over_a_slow_and_lossy_link_that_stalls(network: Network) -> None:
    link = SlowLink(network, "a", "b", delay_s=0.02, loss=0.002, stalls=[(IN_COLLECTIVES, STALL_S)])
    try:
        place = variables.self_served(29500, network.addresses["a"])
        with PlainJob(program("slow"), "a:1,b:1", place, network.place) as job:
            assert job.wait(limit_s=40) == [0, 0], job.printed_by_all()
            finished = job.reports.await_event("finished", range(2))
    finally:
        stalls = link.close()
    assert len(stalls) == 1
    # The stall came during the collectives, not during the start.
    assert all(report["slowest"] > STALL_S / 2 for report in finished.values()), finished
