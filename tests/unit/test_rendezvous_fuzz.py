# SPDX-License-Identifier: Apache-2.0
"""Fault 24, with Hypothesis: the rendezvous keeps serving its job whatever bytes arrive on a real socket."""

import socket
import struct
from contextlib import suppress

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horovod.common.rendezvous import protocol
from horovod.common.rendezvous.client import Connection, RendezvousError
from horovod.common.rendezvous.meeting import Arrival, MeetingBoard
from horovod.common.rendezvous.server import Server

SECRET = b"s" * 32
ADDRESS = "127.0.0.1"
LENGTHS = st.sampled_from([0, 1, 2**24, 2**24 + 1, 2**31 - 1, 2**31, 2**32 - 1]) | st.integers(0, 2**32 - 1)
QUICK = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])

PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(max_size=50)
VALUES = st.recursive(PLAIN, lambda more: st.lists(more, max_size=3), max_leaves=4)
FIELDS = (
    "rank",
    "size",
    "generation",
    "version",
    "info",
    "timeout",
    "key",
    "total",
    "data",
    "offset",
    "new",
    "group",
    "member",
)
REQUESTS = st.dictionaries(st.sampled_from(FIELDS), VALUES) | st.dictionaries(PLAIN.filter(lambda k: k == k), VALUES)
OPERATIONS = st.sampled_from(["meet", "put", "get", "add", "count", "", "exec"]) | VALUES


@pytest.fixture(scope="module")
def server():
    with Server(ADDRESS, secret=SECRET) as running:
        yield running


def still_serves(server):
    with Connection.open(ADDRESS, server.port, SECRET, 5) as connection:
        connection.put("alive", b"yes")
        assert connection.get("alive") == b"yes"


def say(sock, pieces):
    with suppress(OSError):
        for piece in pieces:
            sock.sendall(piece)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(65536):
            pass


@QUICK
@given(st.lists(st.binary(max_size=300), max_size=5), st.booleans())
def test_strangers(server, pieces, greeted):
    """Send arbitrary bytes in arbitrary pieces before the handshake, with or without the right first bytes."""
    authenticated = server.statistics.authenticated
    prefix = [protocol.ClientHandshake(SECRET).prove(protocol.ServerHandshake(SECRET).hello)[:8]] if greeted else []
    with socket.create_connection((ADDRESS, server.port), timeout=10) as sock:
        say(sock, prefix + pieces)
    assert server.statistics.authenticated == authenticated
    still_serves(server)


def authenticated(server):
    sock = socket.create_connection((ADDRESS, server.port), timeout=10)
    handshake = protocol.ClientHandshake(SECRET)
    sock.sendall(handshake.prove(sock.recv(protocol.HELLO_BYTES, socket.MSG_WAITALL)))
    keys = handshake.check(sock.recv(protocol.VERDICT_BYTES, socket.MSG_WAITALL))
    return sock, protocol.FrameWriter(keys.to_server)


@QUICK
@given(LENGTHS, st.integers(0, 2**64 - 1), st.binary(max_size=200))
def test_frames_of_one_who_lost_the_keys(server, length, sequence, rest):
    """Send frames with lengths up to 4 GiB, any sequence number or half a payload after the handshake."""
    sock, _ = authenticated(server)
    with sock:
        say(sock, [struct.pack("!IQ", length, sequence) + rest])
    still_serves(server)


@QUICK
@given(OPERATIONS, REQUESTS)
def test_messages_of_a_mad_worker(server, operation, request):
    """Send authentic frames with invalid messages: the server refuses them and keeps serving the other clients."""
    sock, writer = authenticated(server)
    message = {**request, "op": operation}
    try:
        frame = writer.frame(message)
    except (TypeError, ValueError, OverflowError):  # msgpack cannot encode the message
        sock.close()
        return
    with sock:
        say(sock, [frame])
    still_serves(server)


@QUICK
@given(st.binary(max_size=400))
def test_authentic_frames_of_random_bytes(server, payload):
    sock, writer = authenticated(server)
    real = msgpack.packb
    try:
        protocol.msgpack.packb = lambda _: payload
        frame = writer.frame({})
    finally:
        protocol.msgpack.packb = real
    with sock:
        say(sock, [frame])
    still_serves(server)


@QUICK
@given(st.binary(min_size=protocol.HELLO_BYTES, max_size=200), st.binary(max_size=200))
def test_a_client_believes_no_stranger(hello, rest):
    """Connect a client to a listener that is not the rendezvous: it must reject the listener."""
    with socket.create_server((ADDRESS, 0)) as listener:
        with socket.create_connection(listener.getsockname()) as sock:
            theirs, _ = listener.accept()
            with theirs:
                theirs.sendall(hello + rest)
        client = protocol.ClientHandshake(SECRET)
        with suppress(protocol.ProtocolError):
            client.prove(hello[: protocol.HELLO_BYTES])
            with pytest.raises(RendezvousError):
                client.check(rest.ljust(protocol.VERDICT_BYTES, b"\0")[: protocol.VERDICT_BYTES])
        assert sock.fileno() == -1


STEPS = st.lists(
    st.tuples(st.sampled_from(["arrive", "leave", "lose", "expire"]), st.integers(0, 3), st.integers(1, 4),
              st.integers(0, 3), st.sampled_from(["1.0", "1.1"])),
    max_size=30,
)  # fmt: skip


@QUICK
@given(STEPS)
def test_the_board_answers_everyone_at_most_once_and_only_who_asked(steps):
    board, waiting = MeetingBoard(), set()
    for number, (what, rank, size, generation, version) in enumerate(steps):
        if what == "arrive" and rank < size:
            waiting.add(number)
            arrival = Arrival(number, rank, size, generation, version, f"h{rank}", {"rank": rank}, float(number + 5))
            answers = board.arrive(arrival)
        elif what == "leave" and waiting:
            answers = []
            board.leave(gone := min(waiting))
            waiting.discard(gone)
        elif what == "lose":
            answers = board.lose(rank, f"rank {rank} is lost") if number > 25 else []
        else:
            answers = board.expire(float(number))
        for key, reply in answers:
            assert key in waiting
            waiting.discard(key)
            assert reply["ok"] or reply["error"]
            if reply["ok"]:
                assert [info["rank"] for info in reply["infos"]] == list(range(len(reply["infos"])))
    assert (board.next_deadline() is None) == (not waiting)
