# SPDX-License-Identifier: Apache-2.0
"""`hvd test`, `hvd doctor` and `hvd stacks` with real ranks."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest
from testkit.launcher import python
from testkit.processes import run
from testkit.speed import patience

from horovod.tools import trial

pytestmark = pytest.mark.timeout(210)  # checks and measurements take seconds, more if other tests use the machine

HVD = [sys.executable, "-m", "horovod.tools.cli"]


def hvd(*words, env=None):
    return run([*HVD, *words], env, limit_s=100)


@pytest.fixture
def hvd_among_shadows(tmp_path):
    """Run `hvd` in a folder with files that our processes must not import as modules."""
    script = tmp_path / "bin" / "hvd"  # python -m would put the current folder on sys.path
    script.parent.mkdir()
    script.write_text("from horovod.tools.cli import main\nmain()\n")
    folder = tmp_path / "work"
    (folder / "horovod").mkdir(parents=True)
    shadows = [folder / f"{name}.py" for name in ("random", "socket", "select", "json", "msgpack", "mpi4py", "numpy")]
    for file in [*shadows, folder / "horovod" / "__init__.py"]:
        file.write_text(f"raise SystemExit('the current folder is on sys.path: {file}')\n")

    def start(*words, env=None):
        done = run([sys.executable, str(script), *words], env, limit_s=100, cwd=folder)
        assert "the current folder is" not in done.stdout + done.stderr
        return done

    return start


@pytest.mark.parametrize(("transport", "used"), [("shm", "shared memory"), ("tcp", "TCP")])
def test_all_collectives_pass_over_each_transport(transport, used):
    done = hvd("test", "--transport", transport, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["passed"] is True
    assert (document["ranks"], document["transport"]) == (2, used)
    assert sum(check["outcome"] == "pass" for check in document["checks"]) > 130
    assert all(line["bytes_per_second"] > 0 for line in document["allreduce"])


def test_the_page_of_a_test_fits_any_terminal(hvd_among_shadows):
    done = hvd_among_shadows("test", "-np", "3", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 ranks over" in done.stdout
    assert "passed: " in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_a_bad_setting_is_named_and_fails_the_test():
    done = hvd("test", env={"HOROVOD_CYCLE_TIME": "abc"})
    assert done.returncode == 1
    assert "HOROVOD_CYCLE_TIME='abc' is not valid" in done.stderr


def hang():
    """Wait for a signal, which no process should send, and return its number and its sender."""
    import signal

    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    return str(signal.sigwaitinfo(signal.valid_signals()))


def test_ranks_that_hang_are_ended_with_their_stacks():
    limit_s = patience(5)  # time in which both ranks must have reached hang()
    start = time.monotonic()
    with pytest.raises(trial.TrialFailed, match=r"in hang"):
        print(trial.run(hang, ranks=2, transport="auto", limit_s=limit_s))
    assert time.monotonic() - start < limit_s + 15


def test_a_trial_leaves_the_environment_as_it_was(monkeypatch, tmp_path):
    monkeypatch.setenv("HOROVOD_TIMELINE", str(tmp_path / "mine.json"))
    before = dict(os.environ)
    done = trial.run(os.getpid, ranks=2, transport="tcp", limit_s=20)
    assert len(set(done.results)) == 2
    assert done.transport == "TCP"
    assert dict(os.environ) == before
    assert not (tmp_path / "mine.json").exists()


def test_doctor_measures_both_transports(hvd_among_shadows):
    done = hvd_among_shadows("doctor", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    found = {transport["name"]: transport for transport in document["transports"]}
    assert set(found) == {"shared memory", "TCP"}
    for transport in found.values():
        assert transport["works"], transport["reason"]
        assert 0 < transport["latency_s"] < 1
        assert transport["bandwidth"] > 1e6
    page = hvd("doctor").stdout
    assert "reduction kernels" in page
    assert max(map(len, page.splitlines())) <= 100


def test_doctor_of_hosts_that_are_all_this_machine(hvd_among_shadows):
    done = hvd_among_shadows("doctor", "-H", "localhost:2", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    [host] = document["hosts"]
    assert (host["slots"], host["hostname"], host["address"]) == (2, socket.gethostname(), "127.0.0.1")
    assert document["ways"] == []


def test_a_limit_of_open_files_that_is_too_low_is_the_advice():
    done = run(["sh", "-c", 'ulimit -n 64 && exec "$@"', "sh", *HVD, "doctor", "--json"], limit_s=100)
    assert done.returncode == 1, done.stdout + done.stderr
    advice = json.loads(done.stdout)["advice"]
    assert any(line.startswith("open files: ") for line in advice)
    for transport in ("shared memory", "TCP"):
        assert f"{transport}: two ranks need more open files than allowed: see open files above" in advice


# Rank 1 calls the collective only when the test allows it; until then rank 0 waits inside the engine.
WAITING = """
import numpy, horovod.numpy as hvd
hvd.init()
def call_the_others():
    return hvd.allreduce(numpy.ones(3), op=hvd.Sum, name="late")
def be_late():
    print("waiting", flush=True)
    {wait}
if hvd.rank() == 1:
    be_late()
assert call_the_others().sum() == 6
"""


def test_stacks_of_a_job_whose_ranks_wait_for_each_other(launch, gate):
    job = launch("-np", "2", *python(WAITING.format(wait=gate.pass_through)), stdout=subprocess.PIPE, text=True)
    assert job.stdout.readline() == "[1]<stdout>:waiting\n"
    looks, rank_0 = 0, ""
    # Each look interrupts the engine's wait, which must continue. Rank 0 may not have reached the wait yet.
    while looks < 3 or "in call_the_others" not in rank_0:
        done = hvd("stacks", "--time-limit", "20", str(job.pid))
        assert done.returncode == 0, done.stderr
        rank_0, rank_1 = done.stdout.split("== rank ")[1:]
        assert rank_0.startswith("0, pid ")
        assert "in be_late" in rank_1
        looks += 1
    gate.open()
    assert job.wait(timeout=20) == 0
