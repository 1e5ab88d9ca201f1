# SPDX-License-Identifier: Apache-2.0
"""Rounds of local SGD over a link with 100 ms each way that loses frames and stalls: equal bits after each round."""

import pytest
from faultkit.jobs import PlainJob, program
from testkit import variables
from testkit.hosts import Network
from testkit.long import in_long
from testkit.slow_links import SlowLink

DELAY_S, LOSS = 0.1, 0.01
# Frame at which the stall begins: after the start, which takes some hundred frames, and before the last round.
IN_ROUNDS = 500


@pytest.mark.parametrize(("stall_s", "deadline_s"), [(1.0, 30.0), in_long(5.0, 30.0), in_long(5.0, 1.0)])
def test_rounds_over_a_slow_link_end_with_equal_weights(network: Network, stall_s: float, deadline_s: float) -> None:
    link = SlowLink(network, "a", "b", DELAY_S, LOSS, [(IN_ROUNDS, stall_s)])
    try:
        place = variables.self_served(29500, network.addresses["a"])
        with PlainJob(program("local_sgd", str(deadline_s)), "a:1,b:1", place, network.place) as job:
            assert job.wait(limit_s=45) == [0, 0], job.printed_by_all()
            first, second = job.reports.await_event("finished", range(2)).values()
    finally:
        stalls = link.close()
    assert len(stalls) == 1
    assert first["digests"][-1] == second["digests"][-1], (first, second)
    if deadline_s < stall_s:
        return  # a worker may have missed a round, so only the end is equal
    assert first["digests"] == second["digests"], (first, second)
    assert len(set(first["digests"])) >= 4, first  # every round changed the weights
    # The stall came during the rounds, and training waited for it no longer than it had to.
    assert max(first["slowest"], second["slowest"]) > stall_s / 2, (first, second)
