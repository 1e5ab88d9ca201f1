# SPDX-License-Identifier: Apache-2.0
"""The test tools: time limits that report the stack of every thread, and cleanup that leaves no process."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest
from testkit.awaiting import await_that
from testkit.families import Mark, living
from testkit.launcher import HOROVODRUN, lines_by_rank, python
from testkit.modules import load
from testkit.pipes import Gate, Ready
from testkit.places import python_path
from testkit.processes import Group, Process, run, wait_for_all
from testkit.speed import patience
from testkit.variables import free_ports, of_ranks, size_of

FAMILY = ["sh", "-c", "sleep 1000 & echo $!; wait"]


def test_a_command_that_ends_is_told_with_its_output():
    done = run(python("import os, sys; print(os.environ['MINE']); sys.exit('wrong')"), {"MINE": "x"})
    assert (done.returncode, done.stdout, done.stderr) == (1, "x\n", "wrong\n")


def test_a_command_that_does_not_end_is_shown_with_its_output_and_killed_with_its_children():
    started = time.monotonic()
    with pytest.raises(AssertionError) as caught:
        run(FAMILY, limit_s=3)
    child = int(re.search(r"still runs after [\d.]+ s\n(\d+)\n", str(caught.value))[1])
    assert time.monotonic() - started < patience(20)
    with suppress(psutil.NoSuchProcess):
        assert not living([psutil.Process(child)], patience(5))


def test_a_deadline_shows_the_stacks_of_all_ranks():
    source = """
import signal, horovod.numpy as hvd
def wait_for_nothing():
    open({path!r}, "w").write("x\\n")
    signal.pause()
hvd.init()
wait_for_nothing()
"""
    with Process([*HOROVODRUN, "-np", "2", *python(source.format(path="/dev/stderr"))]) as job:
        await_that(lambda: job.printed().count("<stderr>:x") == 2, 30, job.printed)
        with pytest.raises(AssertionError) as caught:
            wait_for_all([job], limit_s=0.1)
    assert str(caught.value).count("in wait_for_nothing") == 2


def test_a_group_ends_as_a_whole_and_with_its_starter():
    source = f"""
import os, sys
from testkit.processes import Group
group = Group({FAMILY}, stdout=None)
os.write(1, f"{{group.pid}}\\n".encode())  # at once: two processes write here, and print may write in parts
sys.stdin.read()
"""
    mark = Mark("TEST_OF_GROUPS")
    env = {mark.name: mark.value, "PYTHONPATH": python_path(*sys.path)}
    try:
        with Group(python(source), env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
            pids = [int(starter.stdout.readline()) for _ in range(2)]
            assert {process.pid for process in mark.processes()} == {starter.pid, *pids}
            [leader] = [process for process in map(psutil.Process, pids) if process.ppid() == starter.pid]
            os.kill(starter.pid, signal.SIGKILL)
            assert not living([leader], patience(5))
    finally:
        for left in mark.processes():  # the kernel ends only the leader of a killed starter's group
            left.kill()


def test_workers_tell_and_wait(tmp_path):
    with Ready(tmp_path / "ready") as ready, Gate(tmp_path / "gate") as gate:
        source = f"import os; {ready.tell}(f'{{os.getpid()}}\\n'); {gate.pass_through}"
        with Process(python(source)) as first, Process(python(source)) as second:
            assert {int(pid) for pid in ready.wait(2)} == {first.pid, second.pid}
            assert first.poll() is None
            assert second.poll() is None
            gate.open(1)
            run(python(gate.let_one_pass))
            assert wait_for_all([first, second], limit_s=20) == [0, 0]
        with pytest.raises(AssertionError, match=r"only 0 of 1 workers are ready after 0\.\d+ s"):
            ready.wait(1, limit_s=0.1)


def test_output_by_rank():
    text = "[0]<stdout>:a\n[1]<stdout>:b\n[0]<stderr>:c\nd\n[0]<stdout>:\n"
    assert lines_by_rank(text) == {0: ["a", ""], 1: ["b"]}
    assert lines_by_rank(text, "stderr") == {0: ["c"]}


def test_variables_of_ranks():
    first, _, third, fourth = of_ranks(4, neighbours=2, address="10.0.0.1")
    assert (third["HOROVOD_RANK"], third["HOROVOD_LOCAL_RANK"], fourth["HOROVOD_LOCAL_RANK"]) == ("2", "0", "1")
    assert first["_HOROVOD_SECRET_KEY"] == fourth["_HOROVOD_SECRET_KEY"]
    assert len(set(free_ports(5))) == 5
    assert size_of("a:2,b:3") == 5


def test_a_module_is_loaded_once(tmp_path):
    (tmp_path / "some_module.py").write_text("class Thing: pass\n")
    first = load(tmp_path / "some_module.py", "body_")
    assert load(str(tmp_path / "some_module.py"), "body_") is first
    assert sys.modules.pop("body_some_module").Thing.__module__ == "body_some_module"
