# SPDX-License-Identifier: Apache-2.0
"""Sockets of the rendezvous server: one thread and one selector for all connections, and limits for strangers.

What messages mean is up to the handler. protocol.py has the bytes.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from horovod.common.rendezvous import protocol
from horovod.common.rendezvous.meeting import Answers, Reply, refusal

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


@dataclass(frozen=True)
class StrangerLimits:
    """Limits for unauthenticated connections.

    Attributes:
        handshake_s: Time after which one is closed.
        count: How many may be open at once.
    """

    handshake_s: float
    count: int


class Peer:
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


class Handler(Protocol):
    """Object that answers messages. Its methods run on the server's thread."""

    def answer(self, peer: Peer, message: dict[str, Any], /) -> Answers:
        """Handle a message of an authenticated peer. Return answers, also to other peers."""

    def leave(self, peer: Peer, /) -> None:
        """Handle the end of a connection."""

    def next_deadline(self) -> float | None:
        """Return when `keep_time` has to be called at the latest; None for no limit."""

    def keep_time(self, now: float, /) -> Answers:
        """Handle all time limits that have expired."""


class _Listeners:
    """Listening sockets on one port of several addresses, which may pause while there are no free descriptors."""

    def __init__(self, selector: selectors.BaseSelector, accept: Callable[[socket.socket], None]) -> None:
        self._selector = selector
        self._accept = accept
        self._sockets: dict[str, socket.socket] = {}
        self.resume_at: float | None = None  # end of the pause

    def open(self, host: str, port: int) -> int:
        """Listen at an address, if that was not done before. Return the port."""
        if host not in self._sockets:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.create_server((host, port), family=family, backlog=1024)
            listener.setblocking(False)
            self._sockets = {**self._sockets, host: listener}
        return int(self._sockets[host].getsockname()[1])

    def watch(self) -> None:
        if self.resume_at is None:
            for listener in self._sockets.values():
                if listener.fileno() not in self._selector.get_map():
                    self._selector.register(listener, selectors.EVENT_READ, partial(self._accept, listener))

    def pause(self) -> None:
        for listener in self._sockets.values():
            with suppress(KeyError):
                self._selector.unregister(listener)
        self.resume_at = time.monotonic() + _ACCEPT_PAUSE_S

    def keep_time(self, now: float) -> None:
        if self.resume_at is not None and self.resume_at <= now:
            self.resume_at = None
            self.watch()

    def close(self) -> None:
        for listener in self._sockets.values():
            listener.close()


class _Commands:
    """Queue of functions for the server's thread, which a byte through a socket pair wakes."""

    def __init__(self) -> None:
        self._queue: deque[Callable[[], None]] = deque()
        self.receiver, self._sender = socket.socketpair()
        self.receiver.setblocking(False)

    def post(self, command: Callable[[], None]) -> None:
        self._queue.append(command)
        with suppress(OSError):  # the server has stopped, so no rank waits any more
            self._sender.send(b"\0")

    def run(self) -> None:
        with suppress(BlockingIOError):
            self.receiver.recv(4096)
        while self._queue:
            self._queue.popleft()()

    def close(self) -> None:
        self.receiver.close()
        self._sender.close()


class SocketServer:
    """Thread that accepts connections, authenticates them, and passes their messages to a handler.

    Methods without underscore, but `deliver`, may be called from any thread.
    """

    def __init__(self, host: str, port: int, secret: bytes, limits: StrangerLimits, handler: Handler) -> None:
        self._selector = selectors.DefaultSelector()
        self._listeners = _Listeners(self._selector, self._accept)
        self.port = self._listeners.open(host, port)
        self.statistics = Statistics()
        self._secret = secret
        self._limits = limits
        self._handler = handler
        self._commands = _Commands()
        self._peers: set[Peer] = set()
        self._strangers: dict[Peer, None] = {}  # unauthenticated peers, oldest first
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, name="horovod-rendezvous", daemon=True)
        _open_servers.add(self)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close every connection and the port. Safe to call twice."""
        if self._thread.is_alive():
            self.post(self._mark_stopping)
            self._thread.join()
        self.close_sockets()
        _open_servers.discard(self)

    def listen_too(self, host: str) -> None:
        """Listen on the port also at another address of this machine. Raise OSError if the port is taken there."""
        self._listeners.open(host, self.port)
        self.post(self._listeners.watch)

    def post(self, command: Callable[[], None]) -> None:
        """Let the thread call a function."""
        self._commands.post(command)

    @property
    def authenticated(self) -> int:
        """The number of open authenticated connections."""
        return len(self._peers) - len(self._strangers)

    def deliver(self, answers: Answers) -> None:
        """Send answers to those peers that are still connected. Call this on the server's thread."""
        for peer, reply in answers:
            assert isinstance(peer, Peer)
            if peer in self._peers:
                self._send(peer, reply)

    def close_sockets(self) -> None:
        for peer in self._peers:
            peer.sock.close()
        self._peers.clear()
        self._strangers.clear()
        self._listeners.close()
        self._commands.close()
        self._selector.close()

    # The methods below run on the server's thread only.

    def _mark_stopping(self) -> None:
        self._stopping = True

    def _serve(self) -> None:
        self._listeners.watch()
        self._selector.register(self._commands.receiver, selectors.EVENT_READ, self._commands.run)
        while not self._stopping:
            for key, events in self._selector.select(self._time_left()):
                if isinstance(key.data, Peer):
                    self._attend(key.data, events)
                else:
                    key.data()
            self._keep_time()

    def _time_left(self) -> float | None:
        deadlines = [peer.deadline for peer in list(self._strangers)[:1]]
        for moment in (self._handler.next_deadline(), self._listeners.resume_at):
            if moment is not None:
                deadlines.append(moment)
        # Limit the wait, because epoll refuses more than 24 days.
        return min(max(0.0, min(deadlines) - time.monotonic()), _LONGEST_WAIT_S) if deadlines else None

    def _keep_time(self) -> None:
        now = time.monotonic()
        while self._strangers and next(iter(self._strangers)).deadline <= now:
            self._drop_oldest_stranger()
        self.deliver(self._handler.keep_time(now))
        self._listeners.keep_time(now)

    def _drop_oldest_stranger(self) -> None:
        self.statistics.dropped += 1
        self._close(next(iter(self._strangers)))

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
        if len(self._strangers) >= self._limits.count:
            self._drop_oldest_stranger()
        peer = Peer(sock, str(address[0]), self._secret, time.monotonic() + self._limits.handshake_s)
        self._peers.add(peer)
        self._strangers[peer] = None
        self._selector.register(sock, selectors.EVENT_READ, peer)
        self._flush(peer)

    def _make_room(self) -> None:
        """Free a descriptor: close the oldest unauthenticated connection, or stop accepting for a moment."""
        if self._strangers:
            self._drop_oldest_stranger()
        else:
            self._listeners.pause()

    def _attend(self, peer: Peer, events: int) -> None:
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

    def _receive(self, peer: Peer) -> None:
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
                self.deliver(self._handler.answer(peer, message))
        else:
            peer.proof += data
            if len(peer.proof) == protocol.PROOF_BYTES:
                self._judge(peer)

    def _judge(self, peer: Peer) -> None:
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

    def _send(self, peer: Peer, reply: Reply) -> None:
        assert peer.writer is not None
        try:
            frame = peer.writer.frame(reply)
        except protocol.ProtocolError as error:
            frame = peer.writer.frame(refusal(str(error)))
        peer.outgoing += frame
        self._flush(peer)

    def _flush(self, peer: Peer) -> None:
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

    def _close(self, peer: Peer) -> None:
        if peer not in self._peers:
            return
        self._peers.discard(peer)
        self._strangers.pop(peer, None)
        self._handler.leave(peer)
        self._selector.unregister(peer.sock)
        peer.sock.close()


_open_servers: weakref.WeakSet[SocketServer] = weakref.WeakSet()


def _close_in_forked_child() -> None:
    """Close the sockets in a forked child (a data loader), so that it does not keep the port or connections open."""
    for server in list(_open_servers):
        server.close_sockets()
    _open_servers.clear()


os.register_at_fork(after_in_child=_close_in_forked_child)
