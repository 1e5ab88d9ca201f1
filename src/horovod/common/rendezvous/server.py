# SPDX-License-Identifier: Apache-2.0
"""The rendezvous server: one thread and one selector for all connections.

The launcher runs it, or rank 0 of a job that was started without one. meeting.py has the rules of meeting, protocol.py
the bytes, and store.py the key-value store for functions and results. This file handles sockets and time limits.
"""

from __future__ import annotations

import errno
import math
import os
import selectors
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from horovod.common.joining.interfaces import LOOPBACK, check_loopback
from horovod.common.joining.loss import Loss
from horovod.common.lineage import SeenFile
from horovod.common.rendezvous import protocol
from horovod.common.rendezvous.meeting import Answers, Arrival, MeetingBoard, Reply, refusal
from horovod.common.rendezvous.store import Store
from horovod.common.rendezvous.waiting_list import WaitingList
from horovod.common.settings_table import MOST_RANKS

MAX_UNAUTHENTICATED = 512
SLOW_AFTER_S = 5.0
_RECEIVE_BYTES = 256 * 1024
_ACCEPT_PAUSE_S = 0.05
_LONGEST_WAIT_S = 3600.0


@dataclass
class Statistics:
    """Counters of connections and frames, for metrics and tests."""

    authenticated: int = 0
    refused: int = 0
    dropped: int = 0
    bad_frames: int = 0


class _Peer:
    """One connection. It is unauthenticated while `reader` is None."""

    def __init__(self, sock: socket.socket, address: str, secret: bytes, deadline: float) -> None:
        self.sock = sock
        self.address = address
        self.deadline = deadline
        self.handshake = protocol.ServerHandshake(secret)
        self.proof = bytearray()
        self.reader: protocol.FrameReader | None = None
        self.writer: protocol.FrameWriter | None = None
        self.outgoing = bytearray(self.handshake.hello)
        self.closing = False
        self.uploads: dict[str, bytearray] = {}


class Server:
    """The rendezvous server. Call `start()`, give `port` to the workers, and call `stop()`.

    Other methods may be called from any thread.
    """

    def __init__(
        self,
        host: str,
        port: int = 0,
        *,
        secret: bytes,
        handshake_limit_s: float = protocol.HANDSHAKE_LIMIT_S,
        max_unauthenticated: int = MAX_UNAUTHENTICATED,
        on_slow_meeting: Callable[[str], None] | None = None,
        slow_after_s: float = SLOW_AFTER_S,
        on_ready: Callable[[int, Loss | None, bool, tuple[SeenFile, ...]], None] | None = None,
        on_preempted: Callable[[int], None] | None = None,
        on_progress: Callable[[int, dict[str, Any]], None] | None = None,
        on_listening: Callable[[int], None] = lambda birth: None,
        on_report: Callable[[int, dict[str, Any]], None] = lambda birth, message: None,
    ) -> None:
        """Open the port.

        All callbacks run on the server's thread. Callbacks about workers of an elastic job get the worker's id first.

        Args:
            host: Address to listen on.
            port: Port to listen on; 0 for a free one.
            secret: The job's secret.
            handshake_limit_s: Time after which an unauthenticated connection is closed.
            max_unauthenticated: Unauthenticated connections that may be open at once.
            on_slow_meeting: Called once for each meeting that takes long, with a text that names the missing ranks.
            slow_after_s: Time after which a meeting counts as slow.
            on_ready: Called when a worker asks for a place. Further arguments are the loss that ended its last world
                (or None), whether it has never received the training's state, and the newest checkpoints that it knows
                of.
            on_preempted: Called when a worker got SIGTERM and waits for `excuse`.
            on_progress: Called with a worker's progress report, which the driver has asked for.
            on_listening: Called when a worker starts to receive messages, and so can be asked for progress.
            on_report: Called with a worker's report about itself.
        """
        if host == LOOPBACK:
            check_loopback()  # otherwise workers would try to connect until their time limit
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=1024)
        listener.setblocking(False)
        self._listeners = {host: listener}  # listeners by address
        self.port: int = listener.getsockname()[1]
        self.statistics = Statistics()
        self._secret = secret
        self._handshake_limit_s = handshake_limit_s
        self._max_unauthenticated = max_unauthenticated
        self._on_slow_meeting = on_slow_meeting
        self._slow_after_s = slow_after_s
        self._notice_at: float | None = None
        self._board = MeetingBoard(elastic=on_ready is not None)
        self._waiting_list = WaitingList()
        self._on_ready = on_ready
        self._on_preempted = on_preempted
        self._on_progress = on_progress
        self._on_listening = on_listening
        self._on_report = on_report
        self._store = Store()
        self._selector = selectors.DefaultSelector()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._peers: set[_Peer] = set()
        self._strangers: dict[_Peer, None] = {}  # unauthenticated peers, oldest first
        self._accept_again_at: float | None = None
        self._commands: deque[Callable[[], None]] = deque()
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, name="horovod-rendezvous", daemon=True)
        _open_servers.add(self)

    def start(self) -> Server:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Close every connection and the port. Safe to call twice."""
        if self._thread.is_alive():
            self._post(self._mark_stopping)
            self._thread.join()
        self._close_sockets()
        _open_servers.discard(self)

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def listen_too(self, host: str) -> None:
        """Listen on the port also at another address of this machine. Do nothing if that was done before.

        OSError if the port is taken there.
        """
        if host in self._listeners:
            return
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, self.port), family=family, backlog=1024)
        listener.setblocking(False)
        self._listeners = {**self._listeners, host: listener}
        self._post(self._watch_listeners)

    def lose(self, rank: int, text: str) -> None:
        """Record that `rank` has ended. Ranks that wait for it get this text as an error."""
        self._post(lambda: self._deliver(self._board.lose(rank, text)))

    def find(self, rank: int) -> None:
        """Allow a lost rank to come again."""
        self._post(lambda: self._board.find(rank))

    def close_generation(self, generation: int, text: str) -> None:
        """Refuse ranks that meet in this generation or an older one, so that they ask for a new place."""
        self._post(lambda: self._deliver(self._board.close(generation, text)))

    def give_places(self, places: Mapping[int, Mapping[str, Any]], generation: int) -> None:
        """Send their places, by worker id, to the workers that wait for one."""
        self._post(lambda: self._deliver(self._waiting_list.give(places, generation)))

    def dismiss(self, birth: int, text: str) -> None:
        self._post(lambda: self._deliver(self._waiting_list.dismiss(birth, text)))

    def excuse(self, birth: int, may_stay: bool) -> None:
        """Answer a worker that got SIGTERM: True if it may stay until the next commit."""
        self._post(lambda: self._deliver(self._waiting_list.excuse(birth, may_stay)))

    def excuse_nobody(self) -> None:
        """Refuse, from now on, every worker that got SIGTERM and asks to stay."""
        self._post(lambda: self._deliver(self._waiting_list.excuse_nobody()))

    def notify(self, births: Iterable[int], message: Mapping[str, Any]) -> None:
        """Send a message to those of these workers that listen."""
        self._post(lambda: self._deliver(self._waiting_list.notify(births, dict(message))))

    @property
    def waiting(self) -> int:
        """The number of ranks that wait for other ranks now."""
        return self._board.waiting

    @property
    def has_met(self) -> bool:
        return self._board.has_met

    @property
    def connections(self) -> int:
        """The number of open authenticated connections."""
        return len(self._peers) - len(self._strangers)

    def put(self, key: str, value: bytes) -> None:
        self._store.put(key, value)

    def get(self, key: str) -> bytes | None:
        return self._store.get(key)

    # The methods below run on the server's thread only.

    def _post(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        with suppress(OSError):  # the server has stopped, so no rank waits any more
            self._wake_sender.send(b"\0")

    def _mark_stopping(self) -> None:
        self._stopping = True

    def _serve(self) -> None:
        self._watch_listeners()
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, self._run_commands)
        while not self._stopping:
            for key, events in self._selector.select(self._time_left()):
                if isinstance(key.data, _Peer):
                    self._attend(key.data, events)
                else:
                    key.data()
            self._keep_time()

    def _time_left(self) -> float | None:
        deadlines = [peer.deadline for peer in list(self._strangers)[:1]]
        for moment in (self._board.next_deadline(), self._accept_again_at, self._notice_at):
            if moment is not None:
                deadlines.append(moment)
        # Limit the wait, because epoll refuses more than 24 days.
        return min(max(0.0, min(deadlines) - time.monotonic()), _LONGEST_WAIT_S) if deadlines else None

    def _keep_time(self) -> None:
        now = time.monotonic()
        while self._strangers and (oldest := next(iter(self._strangers))).deadline <= now:
            self.statistics.dropped += 1
            self._close(oldest)
        self._deliver(self._board.expire(now))
        self._watch_meeting(now)
        if self._accept_again_at is not None and self._accept_again_at <= now:
            self._accept_again_at = None
            self._watch_listeners()

    def _watch_meeting(self, now: float) -> None:
        """Report a slow meeting once, with the ranks that wait and the ranks that are missing."""
        who = self._board.who_waits() if self._on_slow_meeting is not None else None
        if who is None:
            self._notice_at = None
        elif self._notice_at is None:
            self._notice_at = now + self._slow_after_s
        elif self._notice_at <= now:
            assert self._on_slow_meeting is not None
            self._on_slow_meeting(f"{who} ({self._slow_after_s:g} s so far)")
            self._notice_at = math.inf

    def _run_commands(self) -> None:
        with suppress(BlockingIOError):
            self._wake_receiver.recv(4096)
        while self._commands:
            self._commands.popleft()()

    def _watch_listeners(self) -> None:
        if self._accept_again_at is None:
            for listener in self._listeners.values():
                if listener.fileno() not in self._selector.get_map():
                    self._selector.register(listener, selectors.EVENT_READ, partial(self._accept, listener))

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, address = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._make_room()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Accept the new connection and close the oldest unauthenticated one, so that silent connections cannot keep a
        # worker out.
        if len(self._strangers) >= self._max_unauthenticated:
            self.statistics.dropped += 1
            self._close(next(iter(self._strangers)))
        peer = _Peer(sock, str(address[0]), self._secret, time.monotonic() + self._handshake_limit_s)
        self._peers.add(peer)
        self._strangers[peer] = None
        self._selector.register(sock, selectors.EVENT_READ, peer)
        self._flush(peer)

    def _make_room(self) -> None:
        """Free a descriptor: close the oldest unauthenticated connection, or stop accepting for a moment."""
        if self._strangers:
            self.statistics.dropped += 1
            self._close(next(iter(self._strangers)))
        else:
            for listener in self._listeners.values():
                with suppress(KeyError):
                    self._selector.unregister(listener)
            self._accept_again_at = time.monotonic() + _ACCEPT_PAUSE_S

    def _attend(self, peer: _Peer, events: int) -> None:
        if peer not in self._peers:
            return  # the connection was closed while another event of this round was handled
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(peer)
            if events & selectors.EVENT_READ and peer in self._peers:
                self._receive(peer)
        except protocol.ProtocolError:
            if peer.reader is None:
                self.statistics.refused += 1
            else:
                self.statistics.bad_frames += 1
            self._close(peer)
        except OSError:
            self._close(peer)

    def _receive(self, peer: _Peer) -> None:
        # Before authentication, read no byte beyond the proof.
        wanted = protocol.PROOF_BYTES - len(peer.proof) if peer.reader is None else _RECEIVE_BYTES
        try:
            data = peer.sock.recv(wanted)
        except BlockingIOError:
            return
        if not data or peer.closing:
            self._close(peer)
        elif peer.reader is not None:
            for message in peer.reader.feed(data):
                self._answer(peer, message)
        else:
            peer.proof += data
            if len(peer.proof) == protocol.PROOF_BYTES:
                self._judge(peer)

    def _judge(self, peer: _Peer) -> None:
        verdict, keys = peer.handshake.judge(bytes(peer.proof))
        peer.outgoing += verdict
        if keys is None:
            self.statistics.refused += 1
            peer.closing = True  # the connection is still unauthenticated, so its deadline stays in force
        else:
            self.statistics.authenticated += 1
            peer.reader = protocol.FrameReader(keys.to_server)
            peer.writer = protocol.FrameWriter(keys.to_client)
            del self._strangers[peer]
        self._flush(peer)

    def _answer(self, peer: _Peer, message: dict[str, Any]) -> None:
        try:
            match message.get("op"):
                case "meet":
                    self._deliver(self._board.arrive(_arrival(peer, message)))
                case "place":
                    self._ask_for_place(peer, message)
                case "listen":
                    birth = _integer(message, "birth")
                    self._deliver(self._waiting_list.listen(birth, peer))
                    self._on_listening(birth)
                case "preempted":
                    self._hear_preempted(peer, _integer(message, "birth"))
                case "progress":
                    if self._on_progress is not None:  # a progress report gets no answer
                        self._on_progress(_integer(message, "birth"), message)
                case "report":
                    self._on_report(_integer(message, "birth"), message)
                    self._send(peer, {"ok": True})
                case "put" | "get" | "add" | "count":
                    self._send(peer, self._store.answer(message, peer.uploads))
                case other:
                    self._send(peer, refusal(f"unknown request {other!r:.60}"))
        except (KeyError, TypeError, ValueError) as error:
            self._send(peer, refusal(f"malformed request: {error}"))

    def _ask_for_place(self, peer: _Peer, message: dict[str, Any]) -> None:
        birth = _integer(message, "birth")
        if self._on_ready is None:
            self._send(peer, refusal("this job is not elastic: its ranks have their places from the start"))
            return
        lost = Loss.unpacked(message["lost"]) if message.get("lost") is not None else None
        seen = tuple(SeenFile.unpacked(one) for one in message.get("seen", ()))
        self._waiting_list.ask(birth, peer)
        self._on_ready(birth, lost, bool(message.get("fresh")), seen)

    def _hear_preempted(self, peer: _Peer, birth: int) -> None:
        if self._on_preempted is None:
            self._send(peer, refusal("nobody here lets workers stay until their next commit"))
            return
        self._deliver(self._waiting_list.preempted(birth, peer))
        self._on_preempted(birth)

    def _deliver(self, answers: Answers) -> None:
        for peer, reply in answers:
            assert isinstance(peer, _Peer)
            if peer in self._peers:
                self._send(peer, reply)

    def _send(self, peer: _Peer, reply: Reply) -> None:
        assert peer.writer is not None
        try:
            frame = peer.writer.frame(reply)
        except protocol.ProtocolError as error:
            frame = peer.writer.frame(refusal(str(error)))
        peer.outgoing += frame
        self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        try:
            while peer.outgoing:
                del peer.outgoing[: peer.sock.send(peer.outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self._close(peer)
            return
        if peer.closing and not peer.outgoing:
            peer.sock.shutdown(socket.SHUT_WR)
        waits = selectors.EVENT_WRITE if peer.outgoing else 0
        self._selector.modify(peer.sock, selectors.EVENT_READ | waits, peer)

    def _close(self, peer: _Peer) -> None:
        if peer not in self._peers:
            return
        self._peers.discard(peer)
        self._strangers.pop(peer, None)
        self._board.leave(peer)
        self._waiting_list.leave(peer)
        self._selector.unregister(peer.sock)
        peer.sock.close()

    def _close_sockets(self) -> None:
        for peer in self._peers:
            peer.sock.close()
        self._peers.clear()
        self._strangers.clear()
        for sock in (*self._listeners.values(), self._wake_receiver, self._wake_sender):
            sock.close()
        self._selector.close()


def _arrival(peer: _Peer, message: dict[str, Any]) -> Arrival:
    rank, size, generation = (_integer(message, name) for name in ("rank", "size", "generation"))
    version, info, timeout = message["version"], message["info"], float(message["timeout"])
    if not 1 <= size <= MOST_RANKS:
        raise ValueError(f"the size of the world must be between 1 and {MOST_RANKS}, not {size}")
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} is outside a world of {size}")
    if generation < 0:
        raise ValueError(f"the generation must not be negative, it is {generation}")
    if not timeout > 0:  # this form also refuses NaN
        raise ValueError(f"the time limit must be positive, it is {timeout}")
    if not isinstance(version, str) or not isinstance(info, dict):
        raise TypeError("version must be text and info a map")
    host = info.get("host")
    return Arrival(
        key=peer,
        rank=rank,
        size=size,
        generation=generation,
        version=version[:200],
        host=host[:255] if isinstance(host, str) else peer.address,
        info=info,
        deadline=time.monotonic() + timeout,
    )


def _integer(message: dict[str, Any], name: str) -> int:
    value = message[name]
    if type(value) is not int:
        raise TypeError(f"{name} must be an integer")
    return value


_open_servers: weakref.WeakSet[Server] = weakref.WeakSet()


def _close_in_forked_child() -> None:
    """Close the sockets in a forked child (a data loader), so that it does not keep the port or connections open."""
    for server in list(_open_servers):
        server._close_sockets()
    _open_servers.clear()


os.register_at_fork(after_in_child=_close_in_forked_child)
