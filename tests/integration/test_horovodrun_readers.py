# SPDX-License-Identifier: Apache-2.0
"""horovodrun whose output is not read: it reacts to signals and failures and ends, and loses output only if it must."""

import fcntl
import os
import shlex
import signal
import subprocess
import termios
import time

import psutil
import pytest
from testkit.families import living
from testkit.launcher import HOROVODRUN, horovodrun, python
from testkit.processes import run
from testkit.speed import patience


@pytest.fixture
def stalled():
    """Return a function that makes descriptors whose reader is stalled: a full pipe, or a terminal after Ctrl-S."""
    opened = []

    def make(kind="pipe"):
        if kind == "terminal":
            ours, theirs = os.openpty()
            termios.tcflow(theirs, termios.TCOOFF)
        else:
            ours, theirs = os.pipe()
            size = fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)
            os.write(theirs, b"x" * size)
        opened.extend((ours, theirs))
        return theirs

    yield make
    for descriptor in opened:
        os.close(descriptor)


def code_and_seconds(process, limit_s=20):
    started = time.monotonic()
    return process.wait(timeout=limit_s), time.monotonic() - started


# Write to a stalled reader, and report once all buffers on the way are full.
FLOOD = """
import os, select, sys
print("first", flush=True); print("first", file=sys.stderr)
stream = sys.{stream}.fileno()
while select.select([], [stream], [], 1)[1]:
    os.write(stream, b"x" * 999 + b"\\n")
{tell}(f"{{os.getpid()}}\\n")
{then}
while True: os.write(stream, b"x" * 999 + b"\\n")
"""


def test_signals_act_although_nobody_reads(stalled, ready, launch):
    cases = [
        ("pipe", ("stdout",), signal.SIGINT),
        ("pipe", ("stdout", "stderr"), signal.SIGTERM),
        ("terminal", ("stdout", "stderr"), signal.SIGINT),
    ]
    source = FLOOD.format(stream="stdout", tell=ready.tell, then="")
    jobs = []
    for kind, streams, _ in cases:
        outputs = {**dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL), **dict.fromkeys(streams, stalled(kind))}
        jobs.append(launch("-np", "2", *python(source), env={"TERM": "xterm"}, **outputs))
    workers = [psutil.Process(int(pid)) for pid in ready.wait(2 * len(jobs))]
    for process, (_, _, number) in zip(jobs, cases, strict=True):
        process.send_signal(number)
    results = [code_and_seconds(process) for process in jobs]
    assert [code for code, _ in results] == [130, 143, 130]
    assert max(seconds for _, seconds in results) < 10
    assert not living(workers)


def test_a_failure_ends_the_job_although_nobody_reads(stalled, ready, gate, launch):
    fail = f"if os.environ['HOROVOD_RANK'] == '1': {gate.pass_through}; sys.exit('my own bug')"

    def flooding(stream):
        return ("-np", "2", *python(FLOOD.format(stream=stream, tell=ready.tell, then=fail)))

    unread = launch(*flooding("stdout"), stdout=stalled(), stderr=subprocess.PIPE, text=True)
    unheard = launch(*flooding("stderr"), stdout=subprocess.PIPE, stderr=stalled(), text=True)
    ready.wait(4)
    gate.open(2)
    assert (unread.wait(timeout=20), unheard.wait(timeout=20)) == (1, 1)
    report, output = unread.stderr.read(), unheard.stdout.read()
    assert "failed first: exit code 1" in report
    assert "    my own bug" in report
    assert "bytes of output were lost, because their reader has read nothing for 2 s" in report
    assert "[0]<stdout>:first\n" in output


def test_workers_wait_for_a_reader_who_is_behind_and_nothing_is_lost(ready, launch):
    source = f"""
import os, select
total = 4 << 20
sent = 0
line = b"x" * 1023 + b"\\n"
while sent < total:
    if not select.select([], [1], [], 1)[1]:
        {ready.tell}(f"{{sent}}\\n")
        break
    sent += os.write(1, line)
while sent < total: sent += os.write(1, line)
"""
    process = launch("-np", "1", *python(source), stdout=subprocess.PIPE)
    [sent] = ready.wait(1)
    assert int(sent) < 2 << 20
    assert process.stdout.read() == (b"[0]<stdout>:" + b"x" * 1023 + b"\n") * 4096
    assert process.wait(timeout=20) == 0


def test_a_reader_who_comes_late_gets_everything(ready, launch):
    source = f"import os\nprint('x' * 300_000)\n{ready.tell}(f'{{os.getpid()}}\\n')"
    process = launch("-np", "1", *python(source), stdout=subprocess.PIPE)
    [pid] = ready.wait(1)
    while psutil.pid_exists(int(pid)) or psutil.Process(process.pid).children():
        time.sleep(0.01)  # until the launcher waits only for the reader
    assert len(process.stdout.read()) == len("[0]<stdout>:\n") + 300_000
    assert process.wait(timeout=20) == 0


LOST = "horovodrun: cannot write to stdout: {}; the workers' output is lost from here on\n"


@pytest.mark.parametrize(
    ("flags", "redirection", "reason"),
    [
        ([], ">/dev/full", "No space left on device"),
        (["--min-np", "1"], ">&-", "Bad file descriptor"),
        ([], ">/dev/full 2>&1", None),
        ([], "| head -c 1 >/dev/null", ""),
    ],
)
def test_lost_output_is_reported_once_and_costs_the_exit_code(flags, redirection, reason):
    source = "for number in range(3000): print('x' * 99)"
    command = shlex.join([*HOROVODRUN, "-np", "1", *flags, *python(source)])
    done = run(["bash", "-c", f"set -o pipefail; {command} {redirection}"], limit_s=10)
    is_pipe_to_head = reason == ""
    assert done.returncode == (0 if is_pipe_to_head else 1)
    assert done.stderr == (LOST.format(reason) if reason else "")


def test_output_to_a_terminal_that_is_gone_is_reported():
    ours, theirs = os.openpty()
    os.close(ours)
    with open(theirs, "wb") as gone:
        done = run([*HOROVODRUN, "-np", "1", "echo", "hello"], limit_s=10, stdout=gone, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, LOST.format("Input/output error"))


def test_a_named_pipe_without_a_reader_is_refused_as_output_file(tmp_path):
    (tmp_path / "rank.0").mkdir()
    os.mkfifo(tmp_path / "rank.0" / "stdout")
    done = horovodrun("-np", "1", "--output-filename", str(tmp_path), "true", limit_s=20)
    assert done.returncode == 2
    assert f"cannot write {tmp_path}/rank.0/stdout: no process is reading this named pipe" in done.stderr


def test_fault_40_an_output_file_on_a_full_disk_is_reported_once_and_costs_the_exit_code(tmp_path):
    (tmp_path / "rank.0").mkdir()
    (tmp_path / "rank.0" / "stdout").symlink_to("/dev/full")
    source = "for number in range(3000): print('x' * 99)"
    done = horovodrun("-np", "1", "--output-filename", str(tmp_path), *python(source))
    assert (done.returncode, done.stdout.count("\n")) == (1, 3000)
    error = f"horovodrun: cannot write {tmp_path}/rank.0/stdout any more: [Errno 28] No space left on device\n"
    assert done.stderr == error


def test_a_full_disk_and_a_stalled_pipe_as_output_files_do_not_hold_the_job(tmp_path, ready, launch):
    files = tmp_path / "out" / "rank.0"
    files.mkdir(parents=True)
    (files / "stdout").symlink_to("/dev/full")
    os.mkfifo(files / "stderr")
    source = FLOOD.format(stream="stderr", tell=ready.tell, then="")
    words = ["-np", "1", "--output-filename", str(tmp_path / "out"), *python(source)]
    with open(files / "stderr", "r+b", buffering=0):
        process = launch(*words, stderr=subprocess.PIPE, text=True)
        ready.wait(1)
        process.send_signal(signal.SIGINT)
        stderr = process.stderr.read()
        returncode, seconds = code_and_seconds(process)
    assert (returncode, seconds < patience(10)) == (130, True)
    assert f"cannot write {files}/stdout any more: [Errno 28]" in stderr
    assert "bytes of output were lost" in stderr


def test_horovod_run_returns_although_nobody_reads(stalled):
    source = """
import sys, horovod
def train():
    print("x" * 100_000)
    raise KeyError("my own bug")
try: horovod.run(train, num_proc=2)
except RuntimeError as error: sys.exit(42 if "my own bug" in str(error) else 43)
"""
    done = run(python(source), limit_s=20, stdout=stalled(), stderr=subprocess.DEVNULL)
    assert done.returncode == 42
