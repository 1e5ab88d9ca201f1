# SPDX-License-Identifier: Apache-2.0
"""Description of a waiting thread for the engine: its line in the program, and whether another thread could call."""

import multiprocessing
import queue
import re
import signal
import sys
import threading
import time

import pytest
from testkit.awaiting import await_that

from horovod.common import waits


def told_of_this_thread():
    """Describe this thread from another thread while this one waits, like the engine does."""
    answers = []
    asking = threading.Thread(target=ask, args=[threading.get_ident(), answers])
    asking.start()
    asking.join()  # the line that the description names
    return answers[0]


LINE = told_of_this_thread.__code__.co_firstlineno + 5


def ask(ident, answers):
    while LINE not in lines_of(ident):
        time.sleep(0)
    answers.append(waits.told(ident))


def lines_of(ident):
    """Yield the line numbers at which a thread is inside `told_of_this_thread`."""
    frame = sys._current_frames()[ident]
    while frame is not None:
        if frame.f_code is told_of_this_thread.__code__:
            yield frame.f_lineno
        frame = frame.f_back


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Ignore frameworks that other tests loaded, stop the interval timer, and wait until no other thread runs.

    Threads of earlier tests may still be ending.
    """
    monkeypatch.setattr(waits, "_frameworks_submit", False)
    monkeypatch.setattr(waits, "_initializer", None)
    timer = signal.setitimer(signal.ITIMER_REAL, 0)
    await_that(lambda: told_of_this_thread().startswith("1"), 20, threading.enumerate)
    yield
    signal.setitimer(signal.ITIMER_REAL, *timer)


def test_the_line_is_the_innermost_of_the_program_itself():
    answer = told_of_this_thread()
    assert answer.endswith(f"test_waits.py:{LINE}"), answer
    assert answer.startswith("1"), (answer, sys._current_frames())


def test_another_thread_could_call():
    leave = threading.Event()
    other = threading.Thread(target=leave.wait, name="a\nlogger")
    other.start()
    line, names = told_of_this_thread().split("\n")
    assert line.startswith("2")
    assert line.endswith(f"test_waits.py:{LINE}")
    assert re.fullmatch(r"'a\\nlogger' \(threading\.py:\d+\)", names)
    leave.set()
    other.join()
    timer = threading.Timer(60, print)  # a timer thread runs only standard-library code until it calls its function
    timer.start()
    assert told_of_this_thread().startswith("2")
    timer.cancel()
    timer.join()
    assert told_of_this_thread().startswith("1")


def test_the_thread_that_called_init_calls_horovod():
    leave = threading.Event()

    def initialize():
        waits.note_initializer()
        leave.wait()

    other = threading.Thread(target=initialize)
    other.start()
    while waits._initializer is None:
        time.sleep(0)
    assert told_of_this_thread().startswith("0")
    leave.set()
    other.join()
    assert told_of_this_thread().startswith("1")


def test_many_threads_are_counted():
    leave = threading.Event()
    others = [threading.Thread(target=leave.wait, name=f"{number}" * 100) for number in range(8)]
    for other in others:
        other.start()
    names = told_of_this_thread().partition("\n")[2]
    leave.set()
    for other in others:
        other.join()
    assert names.endswith(", 3 more")
    assert names.count("...'") == 5


def test_threads_that_only_move_data_do_not_count():
    channel = multiprocessing.Queue()
    channel.put("starts its thread")
    try:
        assert channel.get(timeout=10)
        assert any(thread.name == "QueueFeederThread" for thread in threading.enumerate())
        assert told_of_this_thread().startswith("1")
    finally:
        channel.close()
        channel.join_thread()


def test_a_framework_may_call_whenever_it_likes():
    waits.frameworks_submit()
    assert told_of_this_thread().startswith("0")


def test_a_wait_that_an_alarm_will_end_is_not_for_ever():
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        signal.alarm(60)
        assert told_of_this_thread().startswith("0")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_a_thread_that_has_ended_is_nowhere():
    ended = threading.Thread(target=queue.Queue)
    ended.start()
    ended.join()
    assert waits.told(ended.ident) == "0"


def test_files_are_named_as_their_users_would(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert waits._shown(str(tmp_path / "training" / "train.py")) == "training/train.py"
    assert waits._shown("/elsewhere/train.py") == "train.py"
    assert waits._shown("<stdin>") == "<stdin>"
