# SPDX-License-Identifier: Apache-2.0
"""Hosts with a network between them: a job across it gives right results, and ends in time if the network is cut."""

import signal
import time

import pytest
from faultkit.jobs import PlainJob, program
from faultkit.partition import cut_links
from testkit import variables
from testkit.hosts import Network


def served_by_rank_0(network: Network, **more: str) -> dict[str, str]:
    """Return variables with which rank 0 serves the rendezvous, on its own host, where every port is free."""
    return variables.self_served(29500, network.addresses["a"]) | more


@pytest.mark.parametrize(
    ("hosts", "more"),
    [
        ("a:2,b:2", {}),
        ("a:2,b:1", {"HOROVOD_TCP_STREAMS": "2"}),
        # Ranks that seem to be on one host but cannot access each other's memory.
        ("a:1,b:1", {"HOROVOD_HOSTNAME": "same"}),
    ],
    ids=["equal hosts", "unequal hosts", "one name for two hosts"],
)
def test_a_job_across_hosts(network, hosts, more):
    with PlainJob(program("loop"), hosts, served_by_rank_0(network, **more), network.place) as job:
        job.ready()
        job.signal(0, signal.SIGUSR1)
        assert set(job.wait(limit_s=40)) == {0}, job.printed_by_all()
        assert len(job.reports.await_event("finished", range(job.size))) == job.size


@pytest.mark.promise
def test_fault_4_a_host_that_vanishes_is_noticed_by_its_silence(network):
    with PlainJob(
        program("loop"), "a:2,b:2", served_by_rank_0(network, HOROVOD_PEER_TIMEOUT_SECONDS="2"), network.place
    ) as job:
        job.ready()
        cut = time.monotonic()
        network.cut("b")
        failures = job.failed([0, 1, 2, 3], limit_s=10)
        for rank, failure in failures.items():
            assert failure["at"] - cut < 2 + 2, failure
            other_side = [2, 3] if rank < 2 else [0, 1]
            assert failure["lost_rank"] in other_side, failure
            assert failure["shutdown_took"] < 2, failure
        codes = job.wait(limit_s=20)
        assert codes == [1, 1, 1, 1], job.printed_by_all()


@pytest.mark.promise
def test_links_of_one_rank_that_are_dead_while_all_ranks_are_well():
    """Cut links that carry only data, while every rank still shows signs of life over other links.

    The first two ranks of a host may also have links for small tensors.
    """
    with PlainJob(program("only_large"), "a:3,b:3", {"HOROVOD_PEER_TIMEOUT_SECONDS": "2"}) as job:
        job.reports.await_event("ready", range(job.size))
        cut = time.monotonic()
        assert cut_links(job.processes[2].pid, 0) > 0
        failures = job.reports.await_event("failed", range(job.size), limit_s=20)
        for failure in failures.values():
            assert failure["at"] - cut < 2 + 3, failure
            assert failure["lost_rank"] in (2, 5), failure
            assert "acknowledged nothing for 2 s" in failure["text"], failure
        assert set(job.wait(limit_s=20)) == {0}, job.printed_by_all()
