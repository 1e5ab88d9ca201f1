# SPDX-License-Identifier: Apache-2.0
"""Fault 28: the job's secret is in the environment of its workers and nowhere else."""

import base64
import os
import signal

import psutil
from faultkit.jobs import LaunchedJob, PlainJob, program

from horovod.common.rendezvous.protocol import make_secret
from horovod.common.topology import SECRET_VARIABLE


def spellings(encoded: str) -> list[str]:
    secret = base64.b64decode(encoded)
    return [encoded, encoded.rstrip("="), secret.hex(), repr(secret)[2:-1], base64.urlsafe_b64encode(secret).decode()]


def test_fault_28_the_secret_is_in_no_argument_output_or_file(tmp_path):
    timeline = tmp_path / "timeline.json"
    flags = ["--verbose", "--log-level", "TRACE", "--timeline-filename", str(timeline)]
    with LaunchedJob(program("loop"), 2, [*flags, "--output-filename", str(tmp_path / "output")]) as job:
        worker = psutil.Process(job.ready()[1]["pid"])
        encoded = worker.environ()[SECRET_VARIABLE]
        launcher = psutil.Process(job.processes[0].pid)
        everyone = [launcher, *launcher.children(recursive=True)]
        assert worker in everyone
        arguments = "\n".join("\0".join(process.cmdline()) for process in everyone)
        assert SECRET_VARIABLE not in launcher.environ()
        job.signal(1, signal.SIGKILL)
        job.failed([0], limit_s=20)
        assert job.wait(limit_s=20) == [137]
        shown = [arguments, job.printed(), str(job.reports.all)]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert timeline in files
    shown += [path.read_text(errors="replace") for path in files]
    assert "rank 1" in "".join(shown)
    for spelling in spellings(encoded):
        assert not [text for text in shown if spelling in text]


def test_fault_28_every_job_has_its_own_secret_and_children_of_the_launcher_alone_know_it():
    secrets = []
    for _ in range(2):
        with LaunchedJob(program("loop"), 1) as job:
            secrets.append(psutil.Process(job.ready()[0]["pid"]).environ()[SECRET_VARIABLE])
            job.signal(0, signal.SIGUSR1)
            assert job.wait(limit_s=20) == [0]
    assert secrets[0] != secrets[1]
    assert all(len(base64.b64decode(encoded)) >= 16 for encoded in secrets)
    assert SECRET_VARIABLE not in os.environ


def test_fault_28_a_wrong_secret_is_refused_without_being_shown():
    with PlainJob(program("loop"), "a:2") as job:
        job.ready()
        wrong = base64.b64encode(make_secret()).decode()
        stranger = {**job.meeting_point, "HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", SECRET_VARIABLE: wrong}
        job.start(program("loop"), stranger)
        assert job.processes[2].wait(30) == 1
        shown = job.printed(2)
        assert "HorovodInitializationError" in shown
        for spelling in spellings(wrong) + spellings(job.meeting_point[SECRET_VARIABLE]):
            assert spelling not in shown
        job.signal(0, signal.SIGUSR1)
        assert job.wait(limit_s=20) == [0, 0, 1], job.printed_by_all()
