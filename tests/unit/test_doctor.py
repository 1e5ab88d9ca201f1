# SPDX-License-Identifier: Apache-2.0
"""`hvd` and `hvd doctor` without starting ranks: what they read from the machine and how they show it."""

import importlib.metadata
import io
import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

import horovod
from horovod.machine import cgroups, checks
from horovod.machine.findings import Finding
from horovod.tools import doctor, packages, trial
from horovod.tools.cli import app


def hvd(*words):
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return result.output


def test_version():
    assert hvd("--version") == f"{horovod.__version__}\n"


V2, V1 = "0::/a/b", "3:memory:/job\n1:cpu:/job"


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, None),
        ({"/sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"/sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5),
        ({"/proc/self/cgroup": V2, "/sys/fs/cgroup/a/cpu.max": "50000 100000"}, 0.5),
        ({"/proc/self/cgroup": V2, "/sys/fs/cgroup/a/cpu.max": "9 1", "/sys/fs/cgroup/a/b/cpu.max": "2 1"}, 2),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, None),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 4),
        (
            {
                "/proc/self/cgroup": V1,
                "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "300000",
                "/sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
            },
            3,
        ),
    ],
)
def test_cores_of_a_cgroup(files, cores):
    assert cgroups.cores(files.get) == cores


@pytest.mark.parametrize(
    ("files", "size"),
    [
        ({}, None),
        ({"/sys/fs/cgroup/memory.max": "max"}, None),
        ({"/sys/fs/cgroup/memory.max": "1048576"}, 1048576),
        ({"/proc/self/cgroup": V2, "/sys/fs/cgroup/a/b/memory.max": "4096"}, 4096),
        ({"/proc/self/cgroup": V1, "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": "8192"}, 8192),
        ({"/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}, None),
    ],
)
def test_memory_of_a_cgroup(files, size):
    assert cgroups.memory(files.get) == size


def test_large_pages_that_are_off_get_advice():
    assert checks.large_pages("always [madvise] never") == Finding("transparent huge pages", "madvise")
    assert "echo madvise" in checks.large_pages("always madvise [never]").advice
    assert checks.large_pages(None).advice == ""


class FakeDistribution:
    version = "0.28.1"

    def __init__(self, requires):
        self.requires = requires

    def locate_file(self, path):
        return f"/site-packages/{path}"


def test_the_original_horovod_is_named(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: FakeDistribution(["cloudpickle"]))
    [finding] = packages.original_horovod()
    assert "0.28.1" in finding.value
    assert "pip uninstall" in finding.advice


def test_the_distribution_that_points_here_is_no_problem(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: FakeDistribution(["khorovod==1.0"]))
    assert packages.original_horovod() == []


def test_frameworks_are_found_by_their_metadata(monkeypatch):
    monkeypatch.setattr(packages, "version_of", lambda names: "2.9.0" if "torch" in names else None)
    monkeypatch.setattr(packages, "_exists", lambda door: False)
    found = packages.frameworks()
    assert found[0] == Finding("PyTorch", "2.9.0, but horovod.torch is not part of this version")
    assert found[1].name == "not installed"
    assert "TensorFlow" in found[1].value


def test_what_can_only_be_imported_does_not_count_as_served(monkeypatch):
    monkeypatch.setattr(packages, "version_of", lambda names: "2.9.0" if names[0] in ("torch", "pyspark") else None)
    found = packages.frameworks()
    assert found[0].value == "2.9.0, served by horovod.torch"
    assert found[1] == Finding("Spark", "2.9.0, but horovod.spark is not part of this version")


@pytest.fixture
def broken_transport(monkeypatch):
    def run(work, ranks, transport, limit_s, where):
        if transport == "shm":
            raise trial.TrialFailed("Horovod detected a failure\n  the last line says why [/not markup]")
        engine = {"peers_by_shared_memory": 0, "peers_by_socket": 1, "kernels": "portable"}
        return trial.Trial([[1e-5, 0.01], [2e-5, 0.02]], engine)

    monkeypatch.setattr(trial, "run", run)


@pytest.mark.usefixtures("broken_transport")
def test_what_does_not_work_is_said_with_advice():
    found = doctor.examine()
    shm, tcp = found.transports
    assert (shm.works, tcp.works) == (False, True)
    assert tcp.latency_s == 2e-5  # the latency of the slowest rank
    assert tcp.bandwidth == pytest.approx((16 << 20) / 0.02)
    [line] = [line for line in found.advice if line.startswith("shared memory")]
    assert "/dev/shm" in line


def fail_with(monkeypatch, error):
    def run(*_, **__):
        raise error

    monkeypatch.setattr(trial, "run", run)


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("2 workers need 77 open files, and this user may have 64", "see open files above"),
        ("OSError: [Errno 24] Too many open files", "see open files above"),
        ("2 processes are too many for this machine: this user may run 1 (ulimit -u)", "see processes above"),
        ("RuntimeError: can't start new thread", "see processes above"),
        ("rank 1 failed first: killed by signal 9 (SIGKILL)", "see memory above"),
        ("ModuleNotFoundError: No module named 'numpy'", "install what is missing"),
        ("HOROVOD_CYCLE_TIME='abc' is not valid: expected milliseconds", "correct or unset HOROVOD_CYCLE_TIME"),
        ("something else", "hvd test shows the whole error"),
    ],
)
def test_advice_fits_a_cause_that_is_not_the_transports(monkeypatch, reason, advice):
    fail_with(monkeypatch, trial.TrialFailed(f"Horovod detected a failure\n  {reason}"))
    found = doctor.examine()
    lines = [line for line in found.advice if line.startswith(("shared memory", "TCP"))]
    assert len(lines) == 2
    assert all(advice in line for line in lines), lines
    assert not any(word in line for word in ("memfd", "firewall") for line in lines)


def test_doctor_fails_if_its_ranks_fail(monkeypatch):
    fail_with(monkeypatch, ValueError("no such job"))
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 1
    assert not any(transport["works"] for transport in json.loads(result.output)["transports"])


def test_a_low_limit_of_open_files_gets_advice_that_this_user_can_follow():
    assert checks.open_files(4096, 4096).advice == checks.open_files(-1, -1).advice == ""
    assert checks.open_files(64, 4096).advice == checks.open_files(64, -1).advice == "ulimit -n 4096"
    few = checks.open_files(64, 100)
    assert few.value == "64, at most 100 (ulimit -Hn)"
    assert "limits.conf" in few.advice


@pytest.mark.usefixtures("broken_transport")
def test_a_fall_back_is_not_called_shared_memory(monkeypatch):
    engine = {"peers_by_shared_memory": 0, "peers_by_socket": 1, "kernels": "portable"}
    monkeypatch.setattr(trial, "run", lambda *_, **__: trial.Trial([[1e-5, 0.01]], engine))
    shm, tcp = doctor.examine().transports
    assert (shm.works, shm.reason) == (False, "the ranks fell back to TCP")
    assert tcp.works


@pytest.mark.usefixtures("broken_transport")
def test_the_page_fits_a_terminal_and_says_what_the_document_says():
    found = doctor.examine()
    text = io.StringIO()
    console = Console(file=text, width=100)
    for part in doctor.as_page(found):
        console.print(part)
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) < 50
    document = json.loads(json.dumps(doctor.as_json(found)))
    for title, findings in document["sections"].items():
        assert title in text.getvalue()
        assert all(finding["name"] in text.getvalue() for finding in findings)
    assert "the last line says why [/not markup]" in " ".join(text.getvalue().split())
    assert document["advice"] == found.advice
