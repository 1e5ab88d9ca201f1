# SPDX-License-Identifier: Apache-2.0
"""SIGTERM in an elastic worker: delayed until a commit, unless the driver refuses, a second one comes or time is up."""

import os
import signal
import sys
import threading

import pytest
from testkit.processes import run

from horovod.common.preemption import leaves_at_commit

PROGRAM = """
import os, signal, sys, threading
from horovod.common.preemption import leaves_at_commit

case = sys.argv[1]
asked = threading.Event()

def ask():
    asked.set()
    if case == "refused":
        raise OSError("the job ends")

def own(number, frame):
    print("own handler", flush=True)

if case == "user":
    signal.signal(signal.SIGTERM, own)
with leaves_at_commit(ask, 0.3 if case == "grace" else 60.0):
    if case == "child":
        child = os.fork()
        if not child:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(9)
        print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), asked.is_set(), flush=True)
        sys.exit(0)
    os.kill(os.getpid(), signal.SIGTERM)
    assert asked.wait(30)
    print("asked", flush=True)
    if case in ("second", "user"):
        os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(30)
print("not reached")
"""


@pytest.mark.parametrize(
    ("case", "printed"),
    [
        ("second", "asked\n"),
        ("grace", None),  # the process may end before it prints
        ("user", "own handler\nasked\n"),
        ("refused", None),
    ],
)
def test_it_ends_by_the_signal_after_all(case, printed):
    done = run([sys.executable, "-c", PROGRAM, case], {}, limit_s=60)
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert printed is None or done.stdout == printed


def test_a_forked_child_ends_and_its_parent_knows_nothing_of_it():
    done = run([sys.executable, "-c", PROGRAM, "child"], {}, limit_s=60)
    assert (done.returncode, done.stdout) == (0, "child -15 False\n"), done.stderr


def test_the_block_ends_before_the_grace_and_everything_is_as_it_was():
    before = signal.getsignal(signal.SIGTERM)
    threads = set(threading.enumerate())
    asked = threading.Event()
    with leaves_at_commit(asked.set, 60.0):
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked.wait(30)
    assert signal.getsignal(signal.SIGTERM) == before
    assert set(threading.enumerate()) <= threads


@pytest.mark.parametrize("grace_s", [0.0, 60.0])
def test_who_ignores_it_goes_on_doing_so_and_without_a_grace_nothing_is_caught(grace_s):
    wanted = signal.SIG_IGN if grace_s else signal.SIG_DFL
    before = signal.signal(signal.SIGTERM, wanted)
    try:
        with leaves_at_commit(lambda: None, grace_s):
            assert signal.getsignal(signal.SIGTERM) is wanted
    finally:
        signal.signal(signal.SIGTERM, before)
