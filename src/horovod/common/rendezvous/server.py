# SPDX-License-Identifier: Apache-2.0
"""The rendezvous server. The launcher runs it, or rank 0 of a job that was started without one.

sockets.py has its connections, and requests.py what it answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from horovod.common.joining.interfaces import LOOPBACK, check_loopback
from horovod.common.joining.loss import Loss
from horovod.common.lineage import SeenFile
from horovod.common.rendezvous import protocol
from horovod.common.rendezvous.meeting import Answers
from horovod.common.rendezvous.requests import Callbacks, Requests
from horovod.common.rendezvous.sockets import SocketServer, Statistics, StrangerLimits

MAX_UNAUTHENTICATED = 512
SLOW_AFTER_S = 5.0


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
        callbacks = Callbacks(on_ready, on_preempted, on_progress, on_listening, on_report)
        self._requests = Requests(callbacks, on_slow_meeting, slow_after_s)
        limits = StrangerLimits(handshake_limit_s, max_unauthenticated)
        self._sockets = SocketServer(host, port, secret, limits, self._requests)

    def start(self) -> Server:
        self._sockets.start()
        return self

    def stop(self) -> None:
        """Close every connection and the port. Safe to call twice."""
        self._sockets.stop()

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def port(self) -> int:
        return self._sockets.port

    @property
    def statistics(self) -> Statistics:
        return self._sockets.statistics

    def listen_too(self, host: str) -> None:
        """Listen on the port also at another address of this machine. Do nothing if that was done before.

        Raise OSError if the port is taken there.
        """
        self._sockets.listen_too(host)

    def _deliver(self, decide: Callable[[], Answers]) -> None:
        """Let the server's thread compute answers and send them."""
        self._sockets.post(lambda: self._sockets.deliver(decide()))

    def lose(self, rank: int, text: str) -> None:
        """Record that `rank` has ended. Ranks that wait for it get this text as an error."""
        self._deliver(lambda: self._requests.board.lose(rank, text))

    def find(self, rank: int) -> None:
        """Allow a lost rank to come again."""
        self._sockets.post(lambda: self._requests.board.find(rank))

    def close_generation(self, generation: int, text: str) -> None:
        """Refuse ranks that meet in this generation or an older one, so that they ask for a new place."""
        self._deliver(lambda: self._requests.board.close(generation, text))

    def give_places(self, places: Mapping[int, Mapping[str, Any]], generation: int) -> None:
        """Send their places, by worker id, to the workers that wait for one."""
        self._deliver(lambda: self._requests.waiting_list.give(places, generation))

    def dismiss(self, birth: int, text: str) -> None:
        self._deliver(lambda: self._requests.waiting_list.dismiss(birth, text))

    def excuse(self, birth: int, may_stay: bool) -> None:
        """Answer a worker that got SIGTERM: True if it may stay until the next commit."""
        self._deliver(lambda: self._requests.waiting_list.excuse(birth, may_stay))

    def excuse_nobody(self) -> None:
        """Refuse, from now on, every worker that got SIGTERM and asks to stay."""
        self._deliver(lambda: self._requests.waiting_list.excuse_nobody())

    def notify(self, births: Iterable[int], message: Mapping[str, Any]) -> None:
        """Send a message to those of these workers that listen."""
        self._deliver(lambda: self._requests.waiting_list.notify(births, dict(message)))

    @property
    def waiting(self) -> int:
        """The number of ranks that wait for other ranks now."""
        return self._requests.board.waiting

    @property
    def has_met(self) -> bool:
        return self._requests.board.has_met

    @property
    def connections(self) -> int:
        """The number of open authenticated connections."""
        return self._sockets.authenticated

    def put(self, key: str, value: bytes) -> None:
        self._requests.store.put(key, value)

    def get(self, key: str) -> bytes | None:
        return self._requests.store.get(key)
