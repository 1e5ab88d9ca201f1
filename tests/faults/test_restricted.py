# SPDX-License-Identifier: Apache-2.0
"""Fault 23 and restricted machines: jobs work without memfd, pidfd or room in /dev/shm, and in other namespaces."""

import pytest
from faultkit.jobs import Job, LaunchedJob, PlainJob, program

# Shell command for a new mount namespace with a small /dev/shm, full if asked for. It then executes its arguments.
SMALL_SHM = """
mount -t tmpfs -o size={size} tmpfs /dev/shm && {fill} exec "$@"
"""
FILL = "{ cat /dev/zero > /dev/shm/full 2>/dev/null; true; } &&"


def check_done(job: Job, by_memory: int, by_socket: int) -> None:
    assert set(job.wait(limit_s=40)) == {0}, job.printed_by_all()
    for report in job.reports.await_event("done", range(job.size)).values():
        engine = report["engine"]
        assert (engine["peers_by_shared_memory"], engine["peers_by_socket"]) == (by_memory, by_socket), report


def check_one_warning(job: Job) -> None:
    shown = job.printed_by_all()
    assert shown.count("WARNING") == 1, shown
    assert "They use sockets instead" in shown, shown


@pytest.mark.parametrize("refused", [["memfd_create"], ["pidfd_open"], ["memfd_create", "pidfd_open"]], ids="+".join)
def test_system_calls_refused(refused):
    with PlainJob(program("restricted", *refused), "a:2") as job:
        check_done(job, by_memory=1, by_socket=0)


@pytest.mark.parametrize(("size", "fill"), [("1m", FILL), ("64k", "")], ids=["full", "tiny"])
def test_fault_23_no_memory_to_share(size, fill):
    prefix = ["unshare", "--mount", "sh", "-c", SMALL_SHM.format(size=size, fill=fill), "sh"]
    with LaunchedJob(program("restricted", "memfd_create"), 2, prefix=prefix) as job:
        check_done(job, by_memory=0, by_socket=1)
        check_one_warning(job)


def test_fault_23_a_small_dev_shm_is_enough():
    """Check that 64 MB, as in containers, hold the arenas of two ranks without a fallback or a warning."""
    prefix = ["unshare", "--mount", "sh", "-c", SMALL_SHM.format(size="64m", fill=""), "sh"]
    with LaunchedJob(program("restricted", "memfd_create"), 2, prefix=prefix) as job:
        check_done(job, by_memory=1, by_socket=0)
        assert "WARNING" not in job.printed_by_all()


def test_fault_23_memory_refused_to_one_rank_only():
    """Check that ranks use a transport that works for both: each has its own /dev/shm, and rank 1's is full."""

    def wrap(slot):
        fill = FILL if slot.rank == 1 else ""
        return ["unshare", "--mount", "sh", "-c", SMALL_SHM.format(size="64m", fill=fill), "sh"]

    with PlainJob(program("restricted", "memfd_create"), "a:2", wrap=wrap) as job:
        check_done(job, by_memory=0, by_socket=1)
        check_one_warning(job)


def test_every_rank_in_its_own_process_namespace():
    def wrap(slot):
        return ["unshare", "--pid", "--ipc", "--fork", "--kill-child"]

    with PlainJob(program("restricted"), "a:2", wrap=wrap) as job:
        check_done(job, by_memory=1, by_socket=0)
