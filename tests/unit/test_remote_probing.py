# SPDX-License-Identifier: Apache-2.0
"""Which hosts reach each other: probes on this machine, and rounds with simulated agents."""

import socket
import time
from contextlib import ExitStack, closing

import pytest

from horovod.launcher.remote import probing, reachability
from horovod.launcher.remote.addresses import Choice
from horovod.launcher.remote.opening import LAUNCHER
from horovod.launcher.remote.probing import Address, Listener, ProbeListener, Target, reach

LIMIT_S = 4.0  # time limit of the probes; a busy machine may answer late


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def silent_port(stack):
    """Return the port of a listener with a full backlog, which neither accepts nor refuses another connection."""
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
    for _ in range(3):
        filling = stack.enter_context(socket.socket())
        filling.setblocking(False)
        filling.connect_ex(listener.getsockname())
    return listener.getsockname()[1]


def test_one_that_answers_is_reached_after_more_that_do_not_than_there_were_threads(stack, silent_port):
    own = stack.enter_context(closing(ProbeListener()))
    silent = [Target(f"h{number}", ("127.0.0.1",), silent_port, own.token) for number in range(100)]
    began = time.monotonic()
    attempts = reach([*silent, Target("last", ("127.0.0.1",), own.port, own.token)], LIMIT_S)
    assert time.monotonic() - began < 2 * LIMIT_S
    assert [one.host for one in attempts if not one.problem] == ["last"]
    assert {one.problem for one in attempts[:-1]} == {"timed out"}
    assert all(one.seconds >= LIMIT_S for one in attempts[:-1])
    assert attempts[-1].seconds < LIMIT_S


def test_more_than_may_be_open_at_once_wait_for_others(stack, monkeypatch):
    monkeypatch.setattr(probing, "_MAX_AT_ONCE", 2)
    own = stack.enter_context(closing(ProbeListener()))
    attempts = reach([Target(f"h{number}", ("127.0.0.1",), own.port, own.token) for number in range(7)], LIMIT_S)
    assert [(one.host, one.problem) for one in attempts] == [(f"h{number}", "") for number in range(7)]
    assert reach([]) == []


def answer_in_parts(token):
    def answer(connection):
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in token:
                connection.sendall(bytes([byte]))

    return answer


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (answer_in_parts(b"0123456789abcdef"), ""),
        (answer_in_parts(b"0123456789abcdeX"), "another machine answers there"),
        (answer_in_parts(b"0123"), "another machine answers there"),
        (answer_in_parts(b""), "another machine answers there"),
    ],
)
def test_only_the_one_that_is_meant_is_reached(stack, answer, problem):
    listener = stack.enter_context(closing(Listener(answer)))
    (attempt,) = reach([Target("h", ("127.0.0.1",), listener.port, b"0123456789abcdef")], LIMIT_S)
    assert attempt.problem == problem


def test_what_is_not_there_is_named():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    (refused,) = reach([Target("h", ("127.0.0.1",), port, b"0123456789abcdef")], LIMIT_S)
    assert refused.problem == "Connection refused"


class Agents:
    """Stand-in for RemoteHosts without any host."""

    def __init__(self):
        self.answers = {}

    def tell(self, name, *message):
        pass

    def wait(self, is_done, limit_s):
        pass


def test_a_host_that_was_just_lost_counts_as_cut_off_from_the_launchers_machine():
    choices = {LAUNCHER: Choice(Address("lo", "127.0.0.1"), "")}
    pairs = [("here", "lost"), ("also here", "here")]
    assert reachability.find_cuts(Agents(), choices, {"lost"}, 1, pairs) == {("here", "lost")}
