# SPDX-License-Identifier: Apache-2.0
"""horovodrun with Ctrl-C, SIGTERM and kill -9: no orphan process, no hang, not many tracebacks."""

import contextlib
import os
import signal
import subprocess
import time

import psutil
import pytest
from launcherkit import mpi
from testkit.families import living
from testkit.launcher import HOROVODRUN, horovodrun, python
from testkit.places import python_path
from testkit.processes import Process
from testkit.speed import patience

# Each worker starts a child, prints both process ids, and waits. {setup} may install handlers. The worker does not use
# signal.pause(): if a signal came just before it, Python would call the handler only after the next signal.
WORKER = """
import os, signal, subprocess, sys, time
{setup}
child = subprocess.Popen(["sleep", "1000"])
print(os.getpid(), child.pid)
while True: time.sleep(0.1)
"""


class Launched:
    """A running horovodrun whose workers have all reported their process ids."""

    def __init__(self, size=2, setup="", flags=()):
        command = [*HOROVODRUN, "-np", str(size), *flags, *python(WORKER.format(setup=setup))]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = Process(command, start_new_session=True, **pipes)
        lines = [self.process.stdout.readline() for _ in range(size)]
        pids = [int(pid) for line in lines for pid in line.partition(":")[2].split()]
        self.everyone = [psutil.Process(pid) for pid in pids]
        assert len(self.everyone) == 2 * size

    def send(self, number):
        self.process.send_signal(number)

    def wait(self, limit_s=30):
        """Return (exit code, stderr, seconds until the exit)."""
        started = time.monotonic()
        _, stderr = self.process.communicate(timeout=limit_s)
        return self.process.returncode, stderr, time.monotonic() - started

    def all_gone(self, limit_s=None):
        return not living(self.everyone, patience(5) if limit_s is None else limit_s)


@pytest.fixture
def waiting_job():
    """Return a function that starts jobs of waiting workers with children; kill what is left after the test."""
    started = []
    # If the tests ignore SIGHUP, as under nohup, the jobs must not inherit that.
    ignored = signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def start(*args, **kwargs):
        started.append(Launched(*args, **kwargs))
        return started[-1]

    yield start
    for job in started:
        for process in living(job.everyone):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        job.process.end()
    signal.signal(signal.SIGHUP, ignored)


@pytest.mark.promise
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_fault_7_a_signal_is_forwarded_and_ends_the_job(waiting_job, number, code):
    job = waiting_job(3)
    job.send(number)
    returncode, stderr, seconds = job.wait()
    assert returncode == code
    assert seconds < 5  # the launcher does not wait for the end of the grace period
    assert job.all_gone()
    assert stderr.count("Traceback") <= 1


def test_fault_7_each_worker_gets_the_signal_once(waiting_job):
    setup = """
def on_interrupt(*_):
    sys.stderr.write("got it\\n")
    signal.setitimer(signal.ITIMER_REAL, 0.5)  # time enough for a second one to be noticed
signal.signal(signal.SIGINT, on_interrupt)
signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
"""
    job = waiting_job(2, setup=setup, flags=["--verbose"])
    job.send(signal.SIGINT)
    returncode, stderr, _ = job.wait()
    assert returncode == 130
    assert stderr.count("got it") == 2


REPORT = """
def report(number, _):
    print("got", number, flush=True)
    if number == signal.SIGUSR2:
        child.terminate()
        sys.exit(0 if child.wait() == -signal.SIGTERM else 3)
signal.signal(signal.SIGUSR1, report)
signal.signal(signal.SIGUSR2, report)
"""


@pytest.mark.parametrize("flags", [[], ["--min-np", "1"]])
def test_users_signals_reach_the_workers_alone(waiting_job, flags):
    job = waiting_job(2, setup=REPORT, flags=flags)
    job.send(signal.SIGUSR1)
    shown = {job.process.stdout.readline() for _ in range(2)}
    assert shown == {f"[{rank}]<stdout>:got {signal.SIGUSR1.value}\n" for rank in range(2)}
    job.send(signal.SIGUSR2)
    returncode, stderr, _ = job.wait()
    assert (returncode, stderr) == (0, "")
    assert job.all_gone()


@pytest.mark.parametrize(
    ("name", "numbers"),
    # MPICH forwards only SIGUSR1 (see docs/hosts.md).
    [("openmpi", [signal.SIGUSR1, signal.SIGUSR2]), ("mpich", [signal.SIGUSR1])],
)
def test_users_signals_pass_through_mpirun(launch, name, numbers):
    source = f"""
import os, signal, time
def say(text): os.write(1, text.encode() + b"\\n")  # in one piece: mpirun mixes those of several ranks
for number in {list(map(int, numbers))}:
    signal.signal(number, lambda number, _: say(f"got {{number}}"))
say("ready")
while True: time.sleep(0.1)  # see WORKER
"""
    job = launch(
        "--mpi", "-np", "2", *python(source), env=mpi.install(name).on_path(), stdout=subprocess.PIPE, text=True
    )
    assert [job.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    for number in numbers:
        job.send_signal(number)
        assert [job.stdout.readline() for _ in range(2)] == [f"got {number.value}\n"] * 2
    job.terminate()
    assert job.wait(20) == 128 + signal.SIGTERM


# Each rank writes its process id with a single write, because mpirun mixes the output of ranks.
MPI_RANK = "import os, time; os.write(1, b'%d\\n' % os.getpid())\nwhile True: time.sleep(0.1)"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_a_signal_ends_a_job_of_mpirun(launch, name, number):
    # If the tests ignore SIGHUP, as under nohup, the job must not inherit that.
    ignored = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    try:
        job = launch("--mpi", "-np", "2", *python(MPI_RANK), env=mpi.install(name).on_path(), **pipes)
    finally:
        signal.signal(signal.SIGHUP, ignored)
    ranks = [psutil.Process(int(job.stdout.readline())) for _ in range(2)]
    job.send_signal(number)
    _, stderr = job.communicate(timeout=patience(30))
    assert not living(ranks, patience(5))
    if number == signal.SIGKILL:
        return
    assert job.returncode == 128 + number, stderr
    (line,) = [line for line in stderr.splitlines() if line.startswith("horovodrun: ")]
    assert line.startswith(f"horovodrun: {number.name}: mpirun and the ranks have 5 s to end")


def test_a_users_signal_without_a_handler_ends_the_job_and_is_named(waiting_job):
    job = waiting_job(1)
    job.send(signal.SIGUSR1)
    returncode, stderr, _ = job.wait()
    assert returncode == 128 + signal.SIGUSR1
    assert "failed first: killed by signal 10 (SIGUSR1)" in stderr
    assert "what to do: install a handler for this signal in the script" in stderr


@pytest.mark.parametrize("flags", [[], ["--min-np", "1"]])
def test_users_signals_do_not_end_the_launcher_while_it_opens_hosts(launch, ready, gate, tmp_path, flags):
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\necho > {ready.path}\nhead -c 1 < {gate.path} > /dev/null\necho no such host >&2\n")
    ssh.chmod(0o755)
    env = {**os.environ, "HOROVOD_SSH_COMMAND": str(ssh)}
    job = launch("-np", "1", "-H", "far:1", *flags, "true", env=env, stderr=subprocess.PIPE, text=True)
    ready.wait(1)
    job.send_signal(signal.SIGUSR1)
    job.send_signal(signal.SIGUSR2)
    gate.open()
    _, stderr = job.communicate(timeout=30)
    assert job.returncode == 1, stderr
    assert "no such host" in stderr


IGNORE = "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)"


@pytest.mark.promise
def test_fault_7_the_second_ctrl_c_kills(waiting_job):
    job = waiting_job(2, setup=IGNORE)
    job.send(signal.SIGINT)
    assert "Ctrl-C again kills" in job.process.stderr.readline()
    job.send(signal.SIGINT)
    returncode, stderr, seconds = job.wait()
    assert returncode == 130
    assert seconds < 5
    assert "killing" in stderr
    assert job.all_gone()


@pytest.mark.promise
def test_fault_7_the_grace_is_five_seconds(waiting_job):
    job = waiting_job(1, setup=IGNORE)
    job.send(signal.SIGTERM)
    returncode, _, seconds = job.wait()
    assert returncode == 143
    assert 4 < seconds < 15
    assert job.all_gone()


@pytest.mark.promise
@pytest.mark.parametrize("setup", ["", IGNORE])
def test_fault_6_killing_the_launcher_leaves_nothing(waiting_job, setup):
    job = waiting_job(2, setup=setup)
    started = time.monotonic()
    job.send(signal.SIGKILL)
    assert job.all_gone(limit_s=5)
    assert time.monotonic() - started < 5


@pytest.mark.promise
def test_fault_6_workers_in_a_shell_script_end_too(launch):
    process = launch("-np", "1", "sh", "-c", "sleep 1000 & echo $!; wait", stdout=subprocess.PIPE, text=True)
    grandchild = psutil.Process(int(process.stdout.readline().partition(":")[2]))
    process.kill()
    assert not living([grandchild], limit_s=5)


def test_ctrl_c_acts_between_any_two_starts(launch, tmp_path):
    size, started = 1000, tmp_path / "started"
    started.touch()
    script = f"echo x >> {started}; exec sleep 1000"
    process = launch("-np", str(size), "sh", "-c", script)
    while not started.stat().st_size:
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    before = started.stat().st_size  # may be large if this process had to wait for a core
    assert process.wait(timeout=20) == 130
    assert (started.stat().st_size - before) // len("x\n") < size // 2


def test_a_reader_that_goes_away_does_not_end_the_job(launch, tmp_path):
    source = f"import sys\nfor i in range(100000): print(i)\nopen({str(tmp_path / 'done')!r}, 'w').close()"
    process = launch("-np", "1", *python(source), stdout=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=30) == 0
    assert (tmp_path / "done").exists()


def test_fault_28_the_secret_is_in_the_workers_environment_alone(waiting_job):
    job = waiting_job(2)
    launcher = psutil.Process(job.process.pid)
    secret = job.everyone[0].environ()["_HOROVOD_SECRET_KEY"]
    family = [launcher, *launcher.children(recursive=True)]
    assert len(family) >= 4
    for process in family:
        assert not any(secret in word for word in process.cmdline())
    [guardian] = launcher.children()
    assert all("_HOROVOD_SECRET_KEY" not in process.environ() for process in (launcher, guardian))
    job.send(signal.SIGTERM)
    _, stderr, _ = job.wait()
    assert secret not in stderr


def test_no_descriptors_of_the_launcher_reach_the_workers():
    source = "import os; print(sorted(int(fd) for fd in os.listdir('/proc/self/fd')))"
    done = horovodrun("-np", "2", *python(source))
    assert done.returncode == 0, done.stderr
    # Descriptor 3 belongs to the listing itself.
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>:[0, 1, 2, 3]" for rank in range(2)]


def test_the_launcher_alone_survives_a_strict_sandbox_without_pidfd(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import os\ndel os.pidfd_open\n")
    program = python("import os, sys; sys.exit(int(os.environ['HOROVOD_RANK']) * 3)")
    done = horovodrun("-np", "2", *program, env={"PYTHONPATH": python_path(tmp_path)})
    assert done.returncode == 3, done.stderr
