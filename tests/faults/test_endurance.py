# SPDX-License-Identifier: Apache-2.0
"""Fault 21: many worlds in one process leave nothing behind, and misuse and many threads have defined results."""

import pytest
from faultkit.jobs import PlainJob, program
from testkit.launcher import python
from testkit.processes import run

MEBIBYTE = 1 << 20


@pytest.mark.parametrize(
    ("hosts", "cycles", "env"),
    [("a:1", 1000, {}), ("a:2", 200, {}), ("a:2", 100, {"HOROVOD_SHARED_MEMORY": "0"})],
    ids=["alone", "shared memory", "tcp"],
)
def test_fault_21_cycles_of_init_and_shutdown_leak_nothing(hosts, cycles, env):
    with PlainJob(program("cycles", str(cycles)), hosts, env) as job:
        assert set(job.wait(limit_s=50)) == {0}, job.printed_by_all()
        done = job.reports.await_event("done", range(job.size))
    for report in done.values():
        before, after = report["before"], report["after"]
        assert after.pop("resident") < before.pop("resident") + 8 * MEBIBYTE
        assert after == before


def test_fault_21_threads_calling_at_once():
    with PlainJob(program("threads"), "a:2") as job:
        assert job.wait(limit_s=50) == [0, 0], job.printed_by_all()
        errors = job.reports.await_event("done", [0, 1])[0]["errors"]
    assert len(errors) == 7
    assert "no error" not in errors


def test_fault_21_an_interpreter_that_ends_without_shutdown_ends_well():
    source = """
import numpy as np, horovod.numpy as hvd
hvd.init()
hvd.allreduce_async(np.ones(1000), name="never waited for")
"""
    done = run(python(source))
    assert (done.returncode, done.stderr) == (0, "")
