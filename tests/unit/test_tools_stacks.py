# SPDX-License-Identifier: Apache-2.0
"""`hvd stacks` and its handler in the worker: they report stacks and do not harm a process without the handler."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import psutil
import pytest
from testkit.launcher import python
from testkit.processes import Process
from typer.testing import CliRunner

from horovod.tools import stacks
from horovod.tools.cli import app

WORKER = """
import signal, sys, threading
from horovod.common import stacks
{before}
stacks.offer()
stacks.offer()
def wait_for_the_end():
    print("ready", flush=True)
    sys.stdin.readline()
wait_for_the_end()
"""


@contextmanager
def worker(before="", source=WORKER):
    """Run a ready process that waits for a line on its stdin."""
    command = python(source.replace("{before}", before))
    with Process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.stdin.close()
            process.wait(timeout=20)


def hvd_stacks(*words):
    """Run `hvd stacks` with a long time limit, because a worker on a busy machine may answer late."""
    return CliRunner().invoke(app, ["stacks", "--time-limit", "20", *map(str, words)])


def test_a_worker_answers_each_time_and_goes_on():
    with worker() as process:
        for _ in range(3):
            done = hvd_stacks(process.pid)
            assert done.exit_code == 0, done.output
            assert done.output.count("in wait_for_the_end") == 1
            assert f"pid {process.pid}: {sys.executable}" in done.output
    assert process.returncode == 0


def test_all_threads_are_shown():
    before = (
        "go, there = threading.Event(), threading.Event()\ndef side_work(): there.set(); go.wait()\n"
        "threading.Thread(target=side_work, daemon=True).start()\nthere.wait()\n"
    )
    with worker(before) as process:
        done = hvd_stacks(process.pid)
    assert "in side_work" in done.output
    assert "in wait_for_the_end" in done.output


def test_a_process_that_offers_nothing_is_left_alone():
    with worker(source="import sys; print('ready', flush=True); sys.stdin.readline()") as process:
        done = hvd_stacks(process.pid)
        assert done.exit_code == 1
        assert "is not a worker that has called hvd.init()" in done.output
    assert process.returncode == 0


def test_a_file_of_that_name_without_the_handler_is_no_offer():
    number = signal.SIGRTMIN + 3
    source = (
        f"import os, sys; os.memfd_create('hvd-stacks-{number}-'); print('ready', flush=True); sys.stdin.readline()"
    )
    with worker(source=source) as process:
        assert stacks.find_offer(process.pid) is None
        assert hvd_stacks(process.pid).exit_code == 1
    assert process.returncode == 0


def test_a_process_that_is_gone():
    with Process(["true"]) as done:
        done.wait(10)
    assert f"there is no process {done.pid}" in hvd_stacks(done.pid).output


@pytest.mark.parametrize(
    "taken",
    [
        "signal.signal(signal.SIGRTMIN + 3, lambda *_: None)",
        "signal.signal(signal.SIGRTMIN + 3, signal.SIG_IGN)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 3])",
    ],
)
def test_a_signal_that_the_application_uses_is_not_taken_from_it(taken):
    with worker(taken) as process:
        offer = stacks.find_offer(process.pid)
        assert offer.signal == signal.SIGRTMIN + 4
        assert "in wait_for_the_end" in stacks.read_stacks(offer, 20)
    assert process.returncode == 0


def test_without_memfd_a_nameless_file_serves_and_nothing_is_left(tmp_path):
    refuse = (
        "import os, tempfile\n"
        f"tempfile.tempdir = {str(tmp_path)!r}\n"
        "def refuse(*_): raise PermissionError(1, 'refused')\n"
        "os.memfd_create = refuse\n"
    )
    with worker(refuse) as process:
        assert os.listdir(tmp_path) == []
        assert "in wait_for_the_end" in hvd_stacks(process.pid).output
    assert process.returncode == 0
    assert os.listdir(tmp_path) == []


def test_nowhere_to_write_is_no_reason_to_fail():
    refuse = (
        "import os, tempfile\n"
        "def refuse(*_, **__): raise PermissionError(1, 'refused')\n"
        "os.memfd_create = tempfile.mkstemp = refuse\n"
    )
    with worker(refuse) as process:
        assert stacks.find_offer(process.pid) is None
    assert process.returncode == 0


def test_a_frozen_worker_is_named_as_such():
    with worker() as process:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        done = hvd_stacks(process.pid, "--time-limit", "0.2")
        assert done.exit_code == 1
        assert "no answer within 0.2 s; the process is stopped" in done.output
    assert process.returncode == 0


def test_a_forked_child_can_be_asked_too():
    fork = (
        "import os\n"
        "stacks.offer()\n"
        "reading, writing = os.pipe()\n"
        "there, say_there = os.pipe()\n"
        "child = os.fork()\n"
        "def in_the_child(): os.write(say_there, b'.'); os.read(reading, 1)\n"
        "if child == 0:\n"
        "    os.close(writing); in_the_child(); os._exit(0)\n"
        "os.read(there, 1)\n"
        "import atexit\n"
        "atexit.register(lambda: (os.close(writing), os.waitpid(child, 0)))\n"
    )
    with worker(fork) as process:
        [child] = psutil.Process(process.pid).children()
        assert "in in_the_child" in hvd_stacks(child.pid).output
        assert "in wait_for_the_end" in hvd_stacks(process.pid).output
