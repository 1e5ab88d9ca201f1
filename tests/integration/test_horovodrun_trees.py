# SPDX-License-Identifier: Apache-2.0
"""All processes that workers start end with the job, even after setsid or a double fork."""

import os
import shlex
import signal
import subprocess
import sys

import psutil
import pytest
from testkit.families import living
from testkit.launcher import HOROVODRUN, horovodrun, python
from testkit.processes import Process
from testkit.speed import patience

# Each worker starts a child in a new session and a daemon whose parent has ended; it prints all three process ids.
WORKER = """
import os, signal, subprocess, sys
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
daemon = subprocess.run(
    ["sh", "-c", "setsid sh -c '{trap}; sleep 1000; sleep 1000' >/dev/null 2>&1 & echo $!"],
    capture_output=True, text=True)
print(os.getpid(), child.pid, daemon.stdout.strip())
{then}
"""
WAIT = "while True: signal.pause()"
DEAF = "trap : TERM INT HUP"


def end_of_job(then, act, trap=":", limit_s=None):
    """Return the exit code of a job after `act(process)`; check that no process of its workers is left.

    Args:
        limit_s: Time limit that the product promises; None if the test does not check it.
    """
    command = [*HOROVODRUN, "-np", "2", *python(WORKER.format(then=then, trap=trap))]
    with Process(command, stdout=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline() for _ in range(2)]
        everyone = [psutil.Process(int(pid)) for line in lines for pid in line.partition(":")[2].split()]
        assert len(everyone) == 6
        act(process)
        code = process.wait(timeout=30)
        left = living(everyone, patience(5) if limit_s is None else limit_s)
        for one in left:
            one.kill()
        assert not left
    return code


def test_after_ctrl_c_and_a_second_signal():
    def interrupt(process):
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)

    # A launcher that had to wait for a core receives both signals at once, in any order.
    assert end_of_job(WAIT, interrupt, DEAF) in (128 + signal.SIGINT, 128 + signal.SIGTERM)


@pytest.mark.parametrize("code", [0, 3])
def test_after_the_end_of_the_job(gate, code):
    assert end_of_job(f"{gate.pass_through}; sys.exit({code})", lambda _: gate.open(2)) == code


# Instead of ssh, start the agent on this machine.
AGENT = "import sys; sys.argv[1:] = []; from horovod.runner import agent; sys.exit(agent.main())"


@pytest.mark.parametrize(
    ("flags", "owner"), [([], "rank 0"), (["--min-np", "1"], "worker 0"), (["-H", "elsewhere:1"], "rank 0")]
)
def test_work_that_a_rank_left_running_is_named_once(flags, owner):
    """A process that ends right after its rank is not reported. On other hosts, the agents look for such processes."""
    # Wait until sleep has replaced bash in both processes, because the report names the command of a process.
    named = "for time in 1001 1002; do sleep $time & until grep -q sleep /proc/$!/comm; do :; done; done"
    env = {"HOROVOD_SSH_COMMAND": shlex.join(python(AGENT))}
    done = horovodrun("-np", "1", *flags, "bash", "-c", f"{named}; sleep 0.3 & echo started", env=env)
    assert (done.returncode, done.stdout) == (0, "[0]<stdout>:started\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"horovodrun: {owner} has ended but left 'sleep 100")
    assert " (and 1 more) running" in line


@pytest.mark.promise
def test_fault_6_after_the_launcher_was_killed():
    assert end_of_job(WAIT, lambda process: process.kill(), DEAF, limit_s=5) == -signal.SIGKILL


def test_the_workers_end_when_their_guardian_is_killed(launch):
    words = ["-np", "2", "sh", "-c", "sleep 1000 & echo $$ $!; wait"]
    process = launch(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = [process.stdout.readline() for _ in range(2)]
    everyone = [psutil.Process(int(pid)) for line in lines for pid in line.partition(":")[2].split()]
    [guardian] = psutil.Process(process.pid).children()
    guardian.kill()
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "the process that starts and watches the workers has ended" in stderr
    assert len(everyone) == 4
    assert not living(everyone, patience(5))


def test_a_frozen_guardian_is_thawed_when_it_is_needed():
    def freeze_and_stop(process):
        [guardian] = psutil.Process(process.pid).children()
        guardian.suspend()
        process.terminate()

    assert end_of_job(WAIT, freeze_and_stop) == 143


# A program that forks, like a data loader does, while horovod.run runs a job.
FORKS = """
import os, sys, threading, horovod
def fork(path):
    with open(path) as file: pid = file.read()
    if os.fork() == 0:
        print(pid, flush=True)
        sys.stdin.read()
        os._exit(0)
def train(path):
    import os, signal
    with open(path, "w") as file: file.write(str(os.getpid()))
    signal.pause()
threading.Thread(target=fork, args=sys.argv[1:]).start()
horovod.run(train, sys.argv[1:])
"""


def test_a_forked_child_that_outlives_the_launcher_does_not_keep_the_job_alive(tmp_path):
    os.mkfifo(tmp_path / "pid")
    command = [sys.executable, "-W", "ignore", "-c", FORKS, str(tmp_path / "pid")]
    with Process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        worker = psutil.Process(int(process.stdout.readline()))
        process.kill()
        assert not living([worker], patience(5))
        process.stdin.close()
