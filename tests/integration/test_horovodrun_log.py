# SPDX-License-Identifier: Apache-2.0
"""The flags of the log and the engine thread take effect in real workers."""

import os
import re
import sys

import pytest
from testkit.processes import run

LAUNCHER = [sys.executable, "-m", "horovod.runner.launch"]
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} "

WORK = """
import numpy as np, horovod.numpy as hvd
hvd.init(process_sets="dynamic")
hvd.allreduce(np.ones(4), name="x")
hvd.remove_process_set(hvd.add_process_set([0]))
hvd.shutdown()
"""
CORES = """
import os, pathlib, horovod.numpy as hvd
hvd.init()
for task in pathlib.Path("/proc/self/task").iterdir():
    try:
        lines = (task / "status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        continue  # a thread of the start that has just ended
    status = dict(line.split(":\\t", 1) for line in lines)
    if status["Name"] == "hvd-engine" or int(task.name) == os.getpid():
        print(status["Name"], status["Cpus_allowed_list"])
hvd.shutdown()
"""


def horovodrun(*words, env=None):
    done = run([*LAUNCHER, "-np", "2", *words], env, limit_s=40)
    return done, [lines(done.stdout, "stdout", rank) for rank in range(2)]


def lines(text, stream, rank):
    return re.findall(rf"^\[{rank}\]<{stream}>:(.*)$", text, re.MULTILINE)


def test_nothing_is_said_by_default():
    done, _ = horovodrun(sys.executable, "-c", WORK)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_information_comes_with_time_rank_and_level():
    done, said = horovodrun("--log-level", "info", sys.executable, "-c", WORK)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for rank in range(2):
        expected = [
            rf"joined as rank {rank} of 2 on host 'localhost' \(of 1 hosts\); .* by shared memory: 1, .*",
            r"process set 0: ALLREDUCE runs on SHM",
            r"process set 1 is made: ranks? 0",
            r"process set 1 is removed",
            r"this rank has left the world",
        ]
        assert len(said[rank]) == len(expected), said[rank]
        for line, text in zip(said[rank], expected, strict=True):
            assert re.fullmatch(rf"{TIME}\[{rank}\] \[horovod\] INFO: {text}", line), line


def test_more_is_said_at_trace_in_engine_and_python_and_the_time_can_go():
    done, said = horovodrun("--log-level", "TRACE", "--log-hide-timestamp", sys.executable, "-c", WORK)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert any(line.startswith(f"[{rank}] [horovod] DEBUG: settings: ") for line in said[rank]), said[rank]
        assert f"[{rank}] [horovod] TRACE: process set 0 runs 1 tensors together, the first 'allreduce.x'" in said[rank]


def test_the_config_file_speaks_of_the_log_too(tmp_path):
    (tmp_path / "c.yaml").write_text("logging: {level: info, with_timestamp: false}\n")
    _, said = horovodrun("--config-file", str(tmp_path / "c.yaml"), sys.executable, "-c", WORK)
    assert said[1][-1] == "[1] [horovod] INFO: this rank has left the world"


def test_rank_0_says_once_which_settings_have_no_effect():
    done, _ = horovodrun("--torus-allreduce", sys.executable, "-c", WORK, env={"HOROVOD_CCL_CACHE": "1"})
    assert done.returncode == 0, done.stderr
    said = lines(done.stderr, "stderr", 0)
    for name in ("HOROVOD_TORUS_ALLREDUCE", "HOROVOD_CCL_CACHE"):
        text = rf"{TIME}\[0\] \[horovod\] WARNING: {name} is set: it is accepted, but has no effect in this version"
        assert len([line for line in said if re.fullmatch(text, line)]) == 1, done.stderr
    assert lines(done.stderr, "stderr", 1) == []


def test_the_launcher_says_which_flags_have_no_effect():
    done, _ = horovodrun("--disable-cache", sys.executable, "-c", "")
    assert done.stderr == "horovodrun: --disable-cache is accepted, but has no effect in this version\n"
    done, _ = horovodrun("--slots-per-host", "2", sys.executable, "-c", "")
    assert done.stderr.startswith("horovodrun: --slots-per-host has no effect without --min-np or ")
    done, _ = horovodrun("--slots-per-host", "2", "--log-level", "error", sys.executable, "-c", "")
    assert done.stderr == ""


@pytest.mark.parametrize("flags", [[], ["--min-np", "2"]])
def test_the_launcher_names_settings_that_it_replaces(flags):
    done, _ = horovodrun(*flags, "true", env={"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"})
    text = "horovodrun: {}=mpi has no effect: horovodrun uses gloo unless it is started with --mpi"
    said = [line for line in done.stderr.splitlines() if "has no effect" in line]
    assert (done.returncode, said) == (0, [text.format("HOROVOD_CONTROLLER"), text.format("HOROVOD_CPU_OPERATIONS")])


def test_the_engine_thread_is_pinned_and_the_program_is_not():
    mine = sorted(os.sched_getaffinity(0))
    chosen = [mine[-1], mine[0]]
    done, said = horovodrun("--thread-affinity", ",".join(map(str, chosen)), sys.executable, "-c", CORES)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        found = dict(line.split(" ", 1) for line in said[rank])
        assert found.pop("hvd-engine") == str(chosen[rank])
        (program,) = found.values()
        assert (program == str(chosen[rank])) == (len(mine) == 1)


@pytest.mark.parametrize(
    ("cores", "text"),
    [
        (
            "1023",
            "HOROVOD_THREAD_AFFINITY: the engine thread cannot be pinned to core 1023: this process runs on cores",
        ),
        ("0,", "--thread-affinity='0,' is not valid: expected numbers from 0 to 1023, separated by commas"),
    ],
)
def test_cores_that_are_not_there_are_refused(cores, text):
    done, _ = horovodrun("--thread-affinity", cores, sys.executable, "-c", CORES)
    assert done.returncode != 0
    assert text in done.stderr
