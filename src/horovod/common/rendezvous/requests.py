# SPDX-License-Identifier: Apache-2.0
"""Requests of the rendezvous server's clients, on the server's thread: meetings, waiting workers, reports and values.

meeting.py has the rules of meeting, waiting_list.py the workers that wait for the driver, and store.py the values.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from horovod.common.joining.loss import Loss
from horovod.common.lineage import SeenFile
from horovod.common.rendezvous.meeting import Answers, Arrival, MeetingBoard, refusal
from horovod.common.rendezvous.sockets import Peer
from horovod.common.rendezvous.store import Store
from horovod.common.rendezvous.waiting_list import WaitingList
from horovod.common.settings_table import MOST_RANKS


@dataclass(frozen=True)
class Callbacks:
    """Functions that the server's owner passes; see Server."""

    on_ready: Callable[[int, Loss | None, bool, tuple[SeenFile, ...]], None] | None
    on_preempted: Callable[[int], None] | None
    on_progress: Callable[[int, dict[str, Any]], None] | None
    on_listening: Callable[[int], None]
    on_report: Callable[[int, dict[str, Any]], None]


class SlowMeetings:
    """Watch over a meeting board: it reports a slow meeting once, with the ranks that wait and those missing."""

    def __init__(self, board: MeetingBoard, report: Callable[[str], None] | None, slow_after_s: float) -> None:
        self._board = board
        self._report = report
        self._slow_after_s = slow_after_s
        self.notice_at: float | None = None

    def look(self, now: float) -> None:
        if self._report is None:
            return
        who = self._board.who_waits()
        if who is None:
            self.notice_at = None
        elif self.notice_at is None:
            self.notice_at = now + self._slow_after_s
        elif self.notice_at <= now:
            self._report(f"{who} ({self._slow_after_s:g} s so far)")
            self.notice_at = math.inf


class Requests:
    """Handler of the clients' messages, and what the server keeps about its clients."""

    def __init__(
        self, callbacks: Callbacks, on_slow_meeting: Callable[[str], None] | None, slow_after_s: float
    ) -> None:
        self.board = MeetingBoard(elastic=callbacks.on_ready is not None)
        self.waiting_list = WaitingList()
        self.store = Store()
        self._callbacks = callbacks
        self._slow_meetings = SlowMeetings(self.board, on_slow_meeting, slow_after_s)

    def answer(self, peer: Peer, message: dict[str, Any]) -> Answers:
        try:
            match message.get("op"):
                case "meet":
                    return self.board.arrive(_arrival(peer, message))
                case "place":
                    return self._ask_for_place(peer, message)
                case "listen":
                    birth = _integer(message, "birth")
                    answers = self.waiting_list.listen(birth, peer)
                    self._callbacks.on_listening(birth)
                    return answers
                case "preempted":
                    return self._ask_to_stay(peer, _integer(message, "birth"))
                case "progress":
                    if self._callbacks.on_progress is not None:  # a progress report gets no answer
                        self._callbacks.on_progress(_integer(message, "birth"), message)
                    return []
                case "report":
                    self._callbacks.on_report(_integer(message, "birth"), message)
                    return [(peer, {"ok": True})]
                case "put" | "get" | "add" | "count":
                    return [(peer, self.store.answer(message, peer.uploads))]
                case other:
                    return [(peer, refusal(f"unknown request {other!r:.60}"))]
        except (KeyError, TypeError, ValueError) as error:
            return [(peer, refusal(f"malformed request: {error}"))]

    def _ask_for_place(self, peer: Peer, message: dict[str, Any]) -> Answers:
        birth = _integer(message, "birth")
        if self._callbacks.on_ready is None:
            return [(peer, refusal("this job is not elastic: its ranks have their places from the start"))]
        lost = Loss.unpacked(message["lost"]) if message.get("lost") is not None else None
        seen = tuple(SeenFile.unpacked(one) for one in message.get("seen", ()))
        self.waiting_list.ask(birth, peer)
        self._callbacks.on_ready(birth, lost, bool(message.get("fresh")), seen)
        return []

    def _ask_to_stay(self, peer: Peer, birth: int) -> Answers:
        if self._callbacks.on_preempted is None:
            return [(peer, refusal("nobody here lets workers stay until their next commit"))]
        answers = self.waiting_list.preempted(birth, peer)
        self._callbacks.on_preempted(birth)
        return answers

    def leave(self, peer: Peer) -> None:
        self.board.leave(peer)
        self.waiting_list.leave(peer)

    def next_deadline(self) -> float | None:
        moments = [one for one in (self.board.next_deadline(), self._slow_meetings.notice_at) if one is not None]
        return min(moments) if moments else None

    def keep_time(self, now: float) -> Answers:
        answers = self.board.expire(now)
        self._slow_meetings.look(now)
        return answers


def _arrival(peer: Peer, message: dict[str, Any]) -> Arrival:
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
