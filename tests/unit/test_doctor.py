# SPDX-License-Identifier: Apache-2.0
"""`hvd` and `hvd doctor`."""

import json

import pytest
from typer.testing import CliRunner

import horovod
from horovod.tools.cli import app
from horovod.tools.doctor import cgroup_cores, cgroup_memory


def hvd(*words):
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return result.output


def test_version():
    assert hvd("--version") == f"{horovod.__version__}\n"


def test_doctor_speaks_to_people_and_to_programs():
    text = hvd("doctor")
    sections = json.loads(hvd("doctor", "--json"))
    for title, findings in sections.items():
        assert title in text
        assert all(set(finding) == {"name", "value", "advice"} for finding in findings)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, None),
        ({"/sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"/sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, None),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 4),
    ],
)
def test_cores_of_a_cgroup(files, cores):
    assert cgroup_cores(files.get) == cores


@pytest.mark.parametrize(
    ("files", "size"),
    [
        ({}, None),
        ({"/sys/fs/cgroup/memory.max": "max"}, None),
        ({"/sys/fs/cgroup/memory.max": "1048576"}, 1048576),
        ({"/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}, None),
    ],
)
def test_memory_of_a_cgroup(files, size):
    assert cgroup_memory(files.get) == size
