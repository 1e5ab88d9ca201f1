# SPDX-License-Identifier: Apache-2.0
"""The launcher's decisions on exits and signals, and its splitting of output into lines. No process runs."""

import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod.launcher.output.forwarding import LineSplitter
from horovod.launcher.output.tracebacks import ShownTracebacks, TracebackFolder
from horovod.launcher.start.processes import describe_exit
from horovod.launcher.start.supervision import CAUSE_WAIT_S, KILL_LIMIT_S, Exit, State, Supervision, blames_peer


def test_good_exits_lead_to_zero():
    supervision = Supervision()
    assert [supervision.on_exit(Exit(rank, 0), rank) for rank in range(3)] == [None] * 3
    supervision.on_all_ended()
    assert supervision.exit_code() == 0


def test_the_first_failure_ends_the_others_then_kills_them():
    supervision = Supervision(grace_s=5)
    assert supervision.on_exit(Exit(1, 3), 100) == signal.SIGTERM
    assert supervision.on_exit(Exit(0, 143), 101) is None
    assert supervision.on_time(104.9) is None
    assert supervision.on_time(105) == signal.SIGKILL
    assert supervision.on_time(106) is None
    assert supervision.failure == Exit(1, 3)
    assert supervision.exit_code() == 3


def test_one_who_only_lost_a_peer_is_not_the_cause():
    supervision = Supervision()
    assert supervision.on_exit(Exit(0, 1, blames_peer=True), 10) is None
    assert supervision.on_exit(Exit(2, 1, blames_peer=True), 10.1) is None
    assert supervision.on_exit(Exit(1, 137), 10.2) == signal.SIGTERM
    assert supervision.exit_code() == 137


def test_without_a_better_cause_the_first_counts():
    supervision = Supervision()
    supervision.on_exit(Exit(2, 1, blames_peer=True), 10)
    assert supervision.on_time(10 + CAUSE_WAIT_S) == signal.SIGTERM
    assert supervision.failure == Exit(2, 1, blames_peer=True)


def test_a_late_launcher_first_reads_the_last_words_of_all_that_have_ended():
    supervision = Supervision()
    supervision.on_exit(Exit(2, 1, blames_peer=True), 10)
    assert supervision.on_time(12, has_unread_exits=True) is None
    assert supervision.on_exit(Exit(1, 3), 12) == signal.SIGTERM
    assert supervision.failure == Exit(1, 3)
    assert supervision.on_time(18, has_unread_exits=True) == signal.SIGKILL


def test_if_all_lost_a_peer_the_first_counts():
    supervision = Supervision()
    supervision.on_exit(Exit(1, 4, blames_peer=True), 10)
    supervision.on_exit(Exit(0, 5, blames_peer=True), 10)
    supervision.on_all_ended()
    assert supervision.exit_code() == 4


def test_fault_39_a_rank_that_has_reported_an_exception_is_the_cause_however_late_it_ends():
    supervision = Supervision(grace_s=5)
    assert supervision.on_report(Exit(1, 3), 10)
    assert not supervision.on_report(Exit(2, 1), 10.1)
    # The rank that reported may end later, while the others train.
    assert (supervision.deadline, supervision.state) == (None, State.RUNNING)
    assert supervision.on_exit(Exit(0, 1, blames_peer=True), 11) is None
    assert supervision.on_exit(Exit(2, 9), 12) is None  # this exit does not show that the rank only lost a peer
    assert supervision.on_time(15.9) is None
    assert supervision.on_time(16) == signal.SIGTERM
    assert supervision.on_exit(Exit(1, 143), 16.1) is None
    assert (supervision.failure, supervision.exit_code()) == (Exit(1, 3), 3)


def test_a_report_gives_time_to_the_one_that_others_wait_for():
    supervision = Supervision(grace_s=5)
    supervision.on_exit(Exit(0, 1, blames_peer=True), 10)
    assert supervision.on_report(Exit(1, 1), 10.5)
    assert supervision.on_time(10 + CAUSE_WAIT_S) is None
    assert supervision.on_exit(Exit(1, 7), 13) == signal.SIGTERM
    assert supervision.exit_code() == 7


def test_a_rank_that_has_reported_an_exception_has_failed_whatever_its_exit_code():
    supervision = Supervision()
    supervision.on_report(Exit(1, 1), 10)
    assert supervision.on_exit(Exit(0, 0), 11) is None
    assert supervision.on_exit(Exit(1, 0), 12) == signal.SIGTERM
    assert supervision.exit_code() == 1


def test_a_report_after_a_signal_is_not_a_failure():
    supervision = Supervision()
    supervision.on_signal(signal.SIGINT, 10)
    assert not supervision.on_report(Exit(1, 1), 10.1)
    assert supervision.exit_code() == 130


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_is_forwarded_once_and_the_second_kills(number, code):
    supervision = Supervision()
    assert supervision.on_signal(number, 0) == number
    assert supervision.on_exit(Exit(0, 1), 1) is None
    assert supervision.on_signal(number, 2) == signal.SIGKILL
    assert supervision.on_signal(number, 3) is None
    supervision.on_all_ended()
    assert supervision.exit_code() == code
    assert supervision.failure is None


def test_the_grace_after_a_signal_ends():
    supervision = Supervision(grace_s=5)
    supervision.on_signal(signal.SIGTERM, 0)
    assert supervision.on_time(5) == signal.SIGKILL
    assert supervision.state is State.KILLED


def test_who_survives_sigkill_is_given_up():
    supervision = Supervision(grace_s=5)
    supervision.on_signal(signal.SIGTERM, 0)
    supervision.on_signal(signal.SIGTERM, 1)
    assert supervision.on_time(0.9 + KILL_LIMIT_S) is None
    assert supervision.state is State.KILLED
    assert supervision.on_time(1 + KILL_LIMIT_S) is None
    assert supervision.state is State.GIVEN_UP
    assert supervision.on_signal(signal.SIGTERM, 10) is None
    assert supervision.deadline is None
    assert supervision.exit_code() == 143


def test_ctrl_c_while_a_failed_job_ends_kills_at_once():
    supervision = Supervision()
    supervision.on_exit(Exit(0, 7), 0)
    assert supervision.on_signal(signal.SIGINT, 1) == signal.SIGKILL
    assert supervision.exit_code() == 7


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], False),
        (["Traceback", "  File x", "ValueError: bad"], False),
        (["horovod.common.exceptions.HorovodInternalError: lost rank 1"], True),
        (["x.HorovodInternalError: lost rank 1", "    detail", ""], True),
        (["HorovodInternalError: caught", "ValueError: mine"], False),
    ],
)
def test_last_words(lines, expected):
    assert blames_peer(lines) is expected


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (3, "exit code 3"),
        (137, "killed by signal 9 (SIGKILL), often out of memory"),
        (139, "killed by signal 11 (SIGSEGV)"),
        (250, "exit code 250"),
    ],
)
def test_describe_exit(code, text):
    assert describe_exit(code) == text


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"a\nb\n"], [b"a", b"b"]),
        ([b"a", b"b\nc"], [b"ab", b"c"]),
        ([b"a\r\nb\r\n"], [b"a", b"b"]),
        ([b"a\r", b"\nb\n"], [b"a", b"b"]),
        ([b"\r 10%", b"\r 20%", b"\r100%\n"], [b"100%"]),
        ([b"10%\r20%\r", b"\nnext"], [b"20%", b"next"]),
        ([b"50%\r", b"done\n"], [b"done"]),
        ([b"\r50%\r   \r"], []),
        ([b"\r50%\r   \r\n"], [b""]),
        ([b"\r50%"], [b"50%"]),
        ([b"\n\nx\n"], [b"", b"", b"x"]),
        ([b"\xff\xfe\n"], [b"\xff\xfe"]),
    ],
)
def test_lines(chunks, lines):
    splitter = LineSplitter()
    assert [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.flush() == lines


def test_a_line_that_is_rewritten_shows_its_present_state():
    splitter = LineSplitter()
    states = []
    for chunk in (b"text", b"\n\r 1%", b"\r 2%\r", b" 3%", b"\r  \r", b" 4%\r", b"\nnext"):
        splitter.feed(chunk)
        states.append(splitter.bar)
    assert states == [None, b" 1%", b" 2%", b" 3%", None, b" 4%", None]


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r\n", b"\r", b"\r", b"x" * 5])), st.data())
def test_cutting_the_stream_elsewhere_gives_the_same_lines(pieces, data):
    stream = b"".join(pieces)
    whole, cut = LineSplitter(), LineSplitter()
    expected = whole.feed(stream) + whole.flush()
    position, lines = 0, []
    while position < len(stream):
        step = data.draw(st.integers(1, 5))
        lines += cut.feed(stream[position : position + step])
        position += step
    assert lines + cut.flush() == expected


START = b"Traceback (most recent call last):"
PEER = b"horovod.common.exceptions.HorovodInternalError: rank 1 was lost"


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        ([b"a", b"b"], [b"a", b"b"]),
        ([START, b"  File x", b"ValueError: y", b"z"], [START, b"  File x", b"ValueError: y", b"z"]),
        ([b"a", START, b"  File x", PEER, b"z"], [b"a", PEER + b" (traceback folded; --verbose shows it)", b"z"]),
        (
            [START, b"  1", b"KeyError: HorovodInternalError", START, b"  2", b"E: x"],
            [START, b"  1", b"KeyError: HorovodInternalError", START, b"  2", b"E: x"],
        ),
        ([START, b"  cut off"], [START, b"  cut off"]),
        ([START, START, b"  1", b"E: x"], [START, START, b"  1", b"E: x"]),
    ],
)
def test_tracebacks_about_a_lost_peer_are_folded_and_no_others(lines, shown):
    folder = TracebackFolder(0, ShownTracebacks())
    assert folder.feed(lines) + folder.flush() == shown
    one_by_one = TracebackFolder(0, ShownTracebacks())
    assert [out for line in lines for out in one_by_one.feed([line])] + one_by_one.flush() == shown


def test_a_traceback_that_another_rank_had_too_is_folded():
    shown = ShownTracebacks()
    ranks = [TracebackFolder(rank, shown) for rank in range(3)]
    own, other = [START, b"  File x", b"ValueError: y"], [START, b"  File z", b"ValueError: y"]
    assert ranks[1].feed(own) == own
    assert ranks[0].feed(own) == [b"ValueError: y (the same traceback as of rank 1, folded; --verbose shows it)"]
    assert ranks[2].feed(other) == other
    assert ranks[1].feed(own) == own
