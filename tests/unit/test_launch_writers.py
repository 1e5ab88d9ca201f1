# SPDX-License-Identifier: Apache-2.0
"""Output to slow, stalled or closed readers: who waits for whom, and how lost output is reported."""

import os
import threading
import time

import pytest
from testkit.awaiting import await_that

from horovod.launcher.output import user_output
from horovod.launcher.output.in_place import InPlace, fit
from horovod.launcher.output.user_output import UserOutput
from horovod.launcher.output.writers import Writer, to_descriptor


@pytest.fixture(autouse=True)
def little_patience(monkeypatch):
    monkeypatch.setattr(user_output, "PATIENCE_AFTER_SUCCESS_S", 0.2)
    monkeypatch.setattr(user_output, "_LAST_WORD_S", 10.0)
    threads = set(threading.enumerate())
    yield
    await_that(lambda: set(threading.enumerate()) <= threads)


@pytest.fixture
def much_patience(monkeypatch, little_patience):
    """Extend the patience, so that no output is dropped on a busy machine when the reader takes everything."""
    monkeypatch.setattr(user_output, "PATIENCE_AFTER_SUCCESS_S", 20.0)


class Reader:
    """Output destination that accepts data only after `take`."""

    def __init__(self, pieces=0, size=10):
        self.taken = b""
        self._size = size
        self._pieces = threading.Semaphore(pieces)

    def __call__(self, data):
        if not self._pieces.acquire(timeout=0.01):
            return 0
        self.taken += bytes(data[: self._size])
        return len(data[: self._size])

    def take(self, pieces):
        self._pieces.release(pieces)


@pytest.mark.usefixtures("much_patience")
def test_everything_arrives_in_order():
    out = Reader(1000)
    output = UserOutput(out, out, are_one=True)
    for number in range(100):
        (output.stdout if number % 2 else output.stderr).put(b"%d\n" % number)
    output.close(True)
    assert out.taken == b"".join(b"%d\n" % number for number in range(100))


def test_what_nobody_reads_is_dropped_and_counted_where_somebody_listens():
    out, err = Reader(1), Reader(1000)
    output = UserOutput(out, err)
    output.stdout.put(b"x" * 25)
    await_that(lambda: out.taken)
    output.close(True)
    assert out.taken == b"x" * 10
    assert err.taken == b"horovodrun: 15 bytes of output were lost, because their reader has read nothing for 0.2 s\n"


def test_nobody_listens_at_all():
    output = UserOutput(Reader(), Reader())
    output.stdout.put(b"x")
    output.say("y")
    output.close(True)


def test_a_slow_reader_has_all_the_time_it_takes(monkeypatch):
    """The whole output takes longer than the patience, which starts again with each piece."""
    monkeypatch.setattr(user_output, "PATIENCE_AFTER_SUCCESS_S", 4.0)
    out = Reader()
    output = UserOutput(out, Reader(1000))
    output.stdout.put(b"x" * 60)
    timers = [threading.Timer(0.8 * turn, out.take, (1,)) for turn in range(1, 7)]
    for timer in timers:
        timer.start()
    output.close(True)
    assert out.taken == b"x" * 60
    for timer in timers:
        timer.join()


def test_a_full_queue_tells_when_it_has_room_again():
    out, room = Reader(size=1 << 18), threading.Event()
    writer = Writer("test")
    sink = writer.sink(out)
    writer.tell_of_room(room.set)
    sink.put(b"x" * (1 << 20))
    assert sink.is_full
    out.take(1)
    assert not room.wait(0.05)
    out.take(1)
    assert room.wait(10)
    assert not sink.is_full
    out.take(2)
    assert writer.drain(10, time.monotonic())
    writer.close()


def test_a_reader_who_is_gone_is_never_waited_for():
    read, write = os.pipe()
    os.close(read)
    errors = []
    writer = Writer("test")
    sink = writer.sink(to_descriptor(write), errors.append)
    for _ in range(3):
        sink.put(b"x" * (1 << 20))
    assert writer.drain(10, time.monotonic())
    assert not sink.is_full
    assert [type(error) for error in errors] == [BrokenPipeError]
    writer.close()
    os.close(write)


BACK = b"\r\x1b[K"


@pytest.mark.usefixtures("much_patience")
def test_a_bar_stays_in_the_last_line_of_a_terminal_and_lines_appear_above_it():
    out = Reader(1000, size=1000)
    output = UserOutput(out, out, are_one=True, terminals=(InPlace(lambda: 20), None))
    output.stdout.show_bar((1, "stdout"), b"[1] 10%")
    output.stdout.show_bar((1, "stdout"), b"[1] 20%")
    output.stdout.show_bar((1, "stdout"), b"[1] 20%")  # unchanged bars are not written again
    output.say("word")
    output.stdout.show_bar((0, "stderr"), b"[0] 5%")  # the bar of the lowest rank is shown
    output.stdout.show_bar((1, "stdout"), b"[1] 30%")
    output.stdout.show_bar((0, "stderr"), None)
    output.stdout.show_bar((1, "stdout"), None)
    output.stderr.put(b"end\n")
    output.close(True)
    expected = [BACK + b"[1] 10%", BACK + b"[1] 20%", BACK + b"horovodrun: word\n" + BACK + b"[1] 20%"]
    expected += [BACK + b"[0] 5%", BACK + b"[1] 30%", BACK, b"end\n"]
    assert out.taken == b"".join(expected)


def test_bars_are_not_shown_elsewhere():
    out = Reader(1000)
    output = UserOutput(out, out, are_one=True)
    output.stdout.show_bar((0, "stdout"), b"10%")
    output.close(True)
    assert out.taken == b""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("short", "short"),
        ("0123456789", "012345678"),
        ("\x1b[36m0123456789", "\x1b[36m012345678\x1b[0m"),
        ("日本語日本語", "日本語日"),
    ],
)
def test_a_bar_is_cut_to_one_row(text, shown):
    assert fit(text.encode(), 10).decode() == shown
