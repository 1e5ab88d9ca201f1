# SPDX-License-Identifier: Apache-2.0
"""Which exceptions end a rank, and how they are described. No rank runs."""

import subprocess
import sys

import pytest

from horovod.common import leaving
from horovod.common.exceptions import HorovodInternalError
from horovod.common.joining.elastic_place import lost_rank_of
from horovod.launcher.start.leave_reports import LeaveReport, LeaveReports


class UnspeakableError(Exception):
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("boom"), "ValueError: boom"),
        (ValueError(), "ValueError"),
        (KeyError("x"), "KeyError: 'x'"),
        (UnspeakableError("x"), "UnspeakableError"),
        (ValueError("a\x1b]0;title\x07\nb\udc80"), r"ValueError: a\x1b]0;title\x07\nb\udc80"),
        (ValueError("größer"), "ValueError: größer"),
        (ValueError("x" * 10_000_000), "ValueError: " + 185 * "x" + "..."),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_an_exception_is_one_short_line(error, text):
    assert leaving.described(error) == text
    assert len(text) <= leaving.MAX_CHARS


def raised(*errors):
    """Return the last of these exceptions; each is raised while the previous one is handled."""
    try:
        if errors[:-1]:
            try:
                raise raised(*errors[:-1])
            except Exception:
                raise errors[-1]  # noqa: B904
        raise errors[-1]
    except Exception as error:
        return error


class World:
    def __init__(self, answer):
        self.answer = answer
        self.told = []

    def fail(self, what):
        self.told.append(what)
        return self.answer


@pytest.fixture
def reports(monkeypatch):
    came = []
    monkeypatch.setattr(leaving, "_watch", leaving._Watch())
    monkeypatch.setattr(leaving, "_report", lambda what, code, blames_peer: came.append((what, code)))
    return came


@pytest.mark.parametrize(("answer", "reported"), [(True, 1), (False, 0), (None, 1)])
def test_the_launcher_hears_of_the_first_failure_only(reports, answer, reported):
    world = World(answer)
    leaving._watch.members.add(world)
    for _ in range(2):
        leaving.tell(ValueError("boom"))
    assert world.told == ["raised ValueError: boom"] * 2
    assert reports == [("raised ValueError: boom", 1)] * reported


def test_a_rank_that_fails_because_of_another_is_not_to_blame(reports):
    lost = HorovodInternalError("rank 1 is lost")
    for error in (lost, raised(lost, RuntimeError("training failed")), raised(lost, KeyError(), ValueError())):
        leaving.tell(error)
    assert reports == []
    leaving.tell(raised(KeyError(), ValueError("own")))
    assert len(reports) == 1


def test_each_worker_that_ends_reports_to_an_elastic_driver(monkeypatch):
    came = []
    monkeypatch.setenv("HOROVOD_BIRTH_ID", "7")
    monkeypatch.setattr(leaving, "report_leave", lambda _, *told, **more: came.append((*told, more["blames_peer"])))
    lost = HorovodInternalError("rank 1 raised ValueError: boom")
    limit_s = leaving._REPORT_LIMIT_S
    for error, blames_peer in ((ValueError("boom"), False), (raised(lost, KeyError("x")), True)):
        monkeypatch.setattr(leaving, "_watch", leaving._Watch())
        world = World(False)  # another rank's failure has ended this world already
        leaving._watch.members.add(world)
        leaving.tell(error, 3)
        leaving.tell(error, 3)
        assert came.pop() == (f"raised {leaving.described(error)}", 3, limit_s, blames_peer)
        assert came == []
        assert bool(world.told) is not blames_peer


def test_an_elastic_driver_waits_for_the_end_of_a_rank_that_raised():
    assert lost_rank_of(HorovodInternalError("rank 2 raised ValueError: boom", lost_rank=2)) is None
    assert lost_rank_of(HorovodInternalError("rank 2 is lost (on host 'a'): its process ended", lost_rank=2)) == 2


def test_reports_are_not_trusted():
    reports, woken = LeaveReports(), []
    reports.wake_by(lambda: woken.append(True))
    for message in ({"leaves": "raised X", "code": 3}, {"leaves": "\x1b" + 300 * "x", "code": -1}):
        reports.add(1, message)
    for message in ({}, {"leaves": b"x", "code": 1}, {"leaves": "x", "code": "1"}, {"seen": []}):
        reports.add(1, message)
    first, second = reports.take()
    assert first == LeaveReport(1, "raised X", 3)
    assert (second.what, second.code) == (r"\x1b" + 193 * "x" + "...", 1)
    assert (woken, reports.take()) == ([True, True], [])


PROGRAM = """
import sys, threading
from horovod.common import leaving
leaving._report = lambda what, code, blames_peer: print("told", what, code, flush=True)
class World:
    def fail(self, what): return None
world = World()
leaving.watch(world)
{}
"""


CATCHES = """
def test():
    try: 1/0
    except Exception as error: sys.last_value = error
test()
"""


@pytest.mark.parametrize(
    ("source", "printed", "code"),
    [
        ("raise ValueError('x')", "told raised ValueError: x 1", 1),
        ("sys.exit(3)", "told raised SystemExit: 3 3", 3),
        ("raise SystemExit(3)", "told raised SystemExit: 3 3", 3),
        ("class Own(SystemExit): pass\nraise Own(7)", "told raised Own: 7 7", 7),
        ("exit(3)", "told raised SystemExit: 3 3", 3),
        ("sys.exit('x')", "told raised SystemExit: x 1", 1),
        ("sys.exit()", "", 0),
        ("sys.exit(0)", "", 0),
        ("sys.exit(None)", "", 0),
        ("try: sys.exit(3)\nexcept SystemExit as error: print(error.code, SystemExit(4).code)", "3 4", 0),
        ("threading.Thread(target=sys.exit, args=[3]).start()", "", 0),
        ("sys.excepthook = lambda *_: None\nraise ValueError('x')", "told raised ValueError: x 1", 1),
        (f"sys.excepthook = lambda *_: None\n{CATCHES}", "", 0),
        ("try: 1/0\nexcept Exception as e: sys.excepthook(type(e), e, e.__traceback__)", "", 0),
        ("sys.ps1 = '>'\nraise ValueError('x')", "", 1),
        ("import os\nif os.fork() == 0: sys.exit(3)\nos.wait()", "", 0),
    ],
)
def test_the_end_of_a_program(source, printed, code):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(source)], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.stdout.strip(), done.returncode) == (printed, code), done.stderr
