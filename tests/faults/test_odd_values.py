# SPDX-License-Identifier: Apache-2.0
"""Fault 20: unusual values, shapes and layouts give the right result or a clear refusal."""

import pytest
from faultkit.jobs import PlainJob, program


@pytest.mark.parametrize("env", [{}, {"HOROVOD_SHARED_MEMORY": "0"}], ids=["shared memory", "tcp"])
def test_fault_20_odd_values(env):
    with PlainJob(program("values"), "a:2", env) as job:
        assert job.wait(limit_s=20) == [0, 0], job.printed_by_all()
        assert job.reports.await_event("done", [0, 1])[1]["checks"] == 7
