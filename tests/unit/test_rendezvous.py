# SPDX-License-Identifier: Apache-2.0
"""The rendezvous server and its client over real sockets, with valid clients, strangers and attackers."""

import gc
import os
import queue
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from testkit.speed import patience
from testkit.variables import free_port

from horovod.common.rendezvous import protocol
from horovod.common.rendezvous.client import AuthenticationError, Connection, RendezvousError, meet
from horovod.common.rendezvous.server import Server

SECRET = b"s" * 32
ADDRESS = "127.0.0.1"


@pytest.fixture
def server():
    with Server(ADDRESS, secret=SECRET) as running:
        yield running


def connect(server):
    return Connection.open(ADDRESS, server.port, SECRET, 5)


def meet_all(server, size, generation=0, versions=None):
    """Let `size` ranks meet at the same time; return a result or an exception for each."""

    def one(rank):
        try:
            with connect(server) as connection:
                version = versions[rank] if versions else None
                info = {"host": f"h{rank}", "port": rank}
                return connection.meet(rank, size, generation, info, 10, version=version)
        except RendezvousError as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


def stranger(server):
    return socket.create_connection((ADDRESS, server.port), timeout=10)


def is_closed_by_server(sock):
    """Wait until the server closes the connection, then return True."""
    try:
        while sock.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def test_ranks_meet(server):
    results = meet_all(server, 8)
    assert len({result.world_id for result in results}) == 1
    assert all(result.infos == [{"host": f"h{r}", "port": r} for r in range(8)] for result in results)
    assert {result.local_address for result in results} == {ADDRESS}


def test_generations_meet_one_after_another(server):
    worlds = [meet_all(server, 2, generation)[0].world_id for generation in range(3)]
    assert len(set(worlds)) == 3
    assert "already met" in str(meet_all(server, 2, generation=1)[0])


def test_mixed_versions_are_refused_on_every_rank(server):
    results = meet_all(server, 3, versions=["1.0", "1.0", "1.1"])
    for result in results:
        assert isinstance(result, RendezvousError)
        assert "h2    1.1      2" in str(result)


def test_the_time_limit_names_the_missing_rank(server):
    started = time.monotonic()
    # The time limit includes connecting. An error while connecting would not name the missing rank.
    with pytest.raises(RendezvousError, match=r"waited in vain for rank 1 of 2"):
        meet(ADDRESS, server.port, SECRET, 0, 2, 0, {}, 3)
    assert time.monotonic() - started < patience(10)


def test_a_loss_known_to_the_launcher_ends_the_waiting(server):
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(meet, ADDRESS, server.port, SECRET, 0, 2, 0, {}, 30)
        server.lose(1, "rank 1 on h1 has ended: exit code 3")
        with pytest.raises(RendezvousError, match="rank 1 on h1 .* exit code 3"):
            waiting.result(timeout=20)


@pytest.mark.parametrize(
    ("rank", "size", "generation", "info", "text"),
    [
        (2, 2, 0, {}, "outside a world of 2"),
        (-1, 2, 0, {}, "outside"),
        (0, 0, 0, {}, "size of the world"),
        (0, 2**40, 0, {}, "size of the world"),
        (0, 2, -1, {}, "generation"),
        ("0", 2, 0, {}, "rank must be an integer"),
        (True, 2, 0, {}, "rank must be an integer"),
        (0, 2, 0, "text", "info a map"),
    ],
)
def test_malformed_arrivals_are_refused_with_a_reason(server, rank, size, generation, info, text):
    with connect(server) as connection, pytest.raises(RendezvousError, match=text):
        connection.meet(rank, size, generation, info, 5)


@pytest.mark.parametrize("timeout_s", [float("nan"), 0.0, -1.0])
def test_a_senseless_time_limit_is_refused(server, timeout_s):
    with connect(server) as connection, pytest.raises(RendezvousError, match="time limit must be positive"):
        connection._request(
            {"op": "meet", "rank": 0, "size": 2, "generation": 0, "version": "1", "info": {}, "timeout": timeout_s}, 5
        )


def test_a_slow_meeting_is_reported_once():
    notices = queue.Queue()
    with Server(ADDRESS, secret=SECRET, on_slow_meeting=notices.put, slow_after_s=3.0) as server:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(meet, ADDRESS, server.port, SECRET, 0, 2, 0, {}, 30)
            assert notices.get(timeout=20) == "rank 0 of 2 waits in hvd.init() for rank 1 (3 s so far)"
            meet(ADDRESS, server.port, SECRET, 1, 2, 0, {}, 20)
            waiting.result(timeout=20)
        assert meet_all(server, 2, generation=1)[0].world_id
    assert notices.empty()


def test_a_very_long_time_limit_is_no_problem(server):
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(meet, ADDRESS, server.port, SECRET, 0, 2, 0, {}, 1e8)
        meet(ADDRESS, server.port, SECRET, 1, 2, 0, {}, 20)
        assert waiting.result(timeout=20).world_id


@pytest.mark.parametrize("length", [0, 1, 1000, 20 * 1024 * 1024])
def test_values_of_any_size_travel(server, length):
    value = os.urandom(1000) * (length // 1000 + 1)
    value = value[:length]
    with connect(server) as writer, connect(server) as reader:
        assert reader.get("key") is None
        writer.put("key", value)
        assert reader.get("key") == value
    assert server.get("key") == value


def test_a_worker_of_another_job_is_told_so(server):
    with pytest.raises(AuthenticationError, match="another job") as caught:
        Connection.open(ADDRESS, server.port, b"t" * 32, 5)
    assert server.statistics.refused == 1
    assert "ssss" not in str(caught.value)


def test_the_client_waits_for_a_server_that_starts_later():
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(Connection.open, ADDRESS, port, SECRET, 20)
        with Server(ADDRESS, port, secret=SECRET):
            opening.result(timeout=20).close()


def test_no_server_at_all_is_an_error_in_time():
    port = free_port()
    started = time.monotonic()
    with pytest.raises(RendezvousError, match=f"could not reach the rendezvous at {ADDRESS}:{port} within 0.3 s"):
        Connection.open(ADDRESS, port, SECRET, 0.3)
    assert time.monotonic() - started < patience(10)


def test_a_stopped_server_frees_its_port_and_wakes_its_clients():
    server = Server(ADDRESS, secret=SECRET).start()
    connection = connect(server)
    server.stop()
    server.stop()
    with pytest.raises(RendezvousError, match="lost"):
        connection.get("key")
    connection.close()
    socket.create_server((ADDRESS, server.port)).close()


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".ljust(72), os.urandom(100_000), bytes(4096)])
def test_fault_24_garbage_is_refused_and_the_job_unaffected(server, garbage):
    with stranger(server) as sock:
        try:
            sock.sendall(garbage)
        except (ConnectionResetError, BrokenPipeError):
            pass
        assert is_closed_by_server(sock)
    assert server.statistics.refused == 1
    assert meet_all(server, 2)[0].world_id


def test_fault_24_silent_and_slow_strangers_are_dropped():
    with Server(ADDRESS, secret=SECRET, handshake_limit_s=0.3) as server:
        silent, slow = stranger(server), stranger(server)
        slow.sendall(b"K")
        with silent, slow:
            started = time.monotonic()
            assert is_closed_by_server(silent)
            assert is_closed_by_server(slow)
            assert time.monotonic() - started < patience(10)
        assert server.statistics.dropped == 2


def test_fault_24_a_crowd_of_strangers_keeps_no_worker_out():
    with Server(ADDRESS, secret=SECRET, max_unauthenticated=16) as server:
        crowd = [stranger(server) for _ in range(200)]
        assert meet_all(server, 4)[0].world_id
        for sock in crowd:
            sock.close()
        assert server.statistics.dropped >= 200 - 16 - 4


def test_fault_24_ten_thousand_connections():
    with Server(ADDRESS, secret=SECRET) as server:
        for _ in range(10_000):
            stranger(server).close()
        assert meet_all(server, 2)[0].world_id


def authenticated_socket(server):
    """Return a raw socket after the handshake, and the writer for its frames."""
    sock = stranger(server)
    handshake = protocol.ClientHandshake(SECRET)
    sock.sendall(handshake.prove(sock.recv(protocol.HELLO_BYTES, socket.MSG_WAITALL)))
    keys = handshake.check(sock.recv(protocol.VERDICT_BYTES, socket.MSG_WAITALL))
    return sock, protocol.FrameWriter(keys.to_server)


def test_fault_25_wrong_replayed_and_foreign_frames_are_refused_and_counted(server):
    message = {"op": "put", "key": "k", "total": 1, "data": b"x"}
    attacks = {
        "unkeyed": lambda good: protocol.FrameWriter(bytes(32)).frame(message),
        "replayed": lambda good: good + good,
        "huge": lambda good: b"\xff\xff\xff\xff" + good[4:],
    }
    for count, attack in enumerate(attacks.values(), start=1):
        sock, writer = authenticated_socket(server)
        with sock:
            sock.sendall(attack(writer.frame(message)))
            assert is_closed_by_server(sock)
        assert server.statistics.bad_frames == count
    assert meet_all(server, 2)[0].world_id


def test_fault_25_a_recorded_session_cannot_be_played_to_the_server_again(server):
    sock, writer = authenticated_socket(server)
    recorded = writer.frame({"op": "put", "key": "k", "total": 1, "data": b"x"})
    sock.close()
    other, _ = authenticated_socket(server)
    with other:
        other.sendall(recorded)
        assert is_closed_by_server(other)
    assert server.get("k") is None


def test_half_a_frame_and_gone_leaves_nothing(server):
    sock, writer = authenticated_socket(server)
    sock.sendall(writer.frame({"op": "meet"})[:10])
    sock.close()
    assert meet_all(server, 2)[0].world_id


def test_no_threads_or_descriptors_leak():
    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    gc.collect()  # close objects of earlier tests now, so that the counts below stay stable
    threads, before = set(threading.enumerate()), descriptors()
    for _ in range(20):
        with Server(ADDRESS, secret=SECRET) as server:
            meet(ADDRESS, server.port, SECRET, 0, 1, 0, {}, 5)
    assert set(threading.enumerate()) <= threads  # threads of earlier tests may end during this test
    assert descriptors() <= before


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_does_not_hold_the_port():
    server = Server(ADDRESS, secret=SECRET).start()
    ours, childs = socket.socketpair()
    child = os.fork()
    if child == 0:
        childs.send(b"forked")
        childs.recv(1)
        os._exit(0)
    with ours, childs:
        ours.recv(16)
        server.stop()
        with pytest.raises(ConnectionRefusedError):
            stranger(server)
        ours.send(b"x")
        os.waitpid(child, 0)
