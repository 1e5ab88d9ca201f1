# SPDX-License-Identifier: Apache-2.0
"""The rules by which ranks of one generation meet at the rendezvous or are refused.

This module uses no socket and no thread, and the caller passes the time. The rendezvous server sends the answers.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

Reply = dict[str, Any]
Answers = list[tuple[Hashable, Reply]]


@dataclass(frozen=True)
class Arrival:
    """Request of one rank to meet. `key` identifies the receiver of the answer (the server's connection)."""

    key: Hashable
    rank: int
    size: int
    generation: int
    version: str
    host: str
    info: Any
    deadline: float


def refusal(text: str, again: bool = False) -> Reply:
    """Return a refusal to send.

    Args:
        again: True in an elastic job whose driver assigns a new place to a worker that asks for one.
    """
    return {"ok": False, "error": text, "again": True} if again else {"ok": False, "error": text}


@dataclass
class _Meeting:
    generation: int
    size: int
    arrivals: dict[int, Arrival] = field(default_factory=dict)

    def missing(self) -> list[int]:
        return [rank for rank in range(self.size) if rank not in self.arrivals]

    def first(self) -> Arrival:
        return next(iter(self.arrivals.values()))

    def answer_all(self, reply: Reply) -> Answers:
        """Return an answer for each rank, rank 0 last.

        Rank 0 may serve the rendezvous, and may end once it has its answer.
        """
        return [(self.arrivals[rank].key, reply) for rank in sorted(self.arrivals, reverse=True)]


class MeetingBoard:
    """The open meeting, if any, which is that of the newest generation. Methods return the answers to send.

    Args:
        elastic: True if ranks whose meeting timed out may ask the driver for new places.
    """

    def __init__(self, *, elastic: bool = False) -> None:
        self._elastic = elastic
        self._meeting: _Meeting | None = None
        self._last_met = -1
        self._lost: dict[int, str] = {}
        self._closed: tuple[int, str] | None = None

    def arrive(self, arrival: Arrival) -> Answers:
        if self._closed is not None and arrival.generation <= self._closed[0]:
            return [(arrival.key, refusal(self._closed[1], again=True))]
        if (problem := self._problem_with(arrival)) is not None:
            return [(arrival.key, refusal(problem))]
        answers: Answers = []
        if self._meeting is not None and self._meeting.generation < arrival.generation:
            answers = self._meeting.answer_all(
                refusal(f"generation {self._meeting.generation} is over: generation {arrival.generation} has begun")
            )
            self._meeting = None
        if self._meeting is None:
            self._meeting = _Meeting(arrival.generation, arrival.size)
        self._meeting.arrivals[arrival.rank] = arrival
        if len(self._meeting.arrivals) == self._meeting.size:
            answers += self._conclude(self._meeting)
        return answers

    def leave(self, key: Hashable) -> None:
        """Remove a waiting rank whose connection is gone. It may come again."""
        meeting = self._meeting
        if meeting is None:
            return
        for rank in [rank for rank, arrival in meeting.arrivals.items() if arrival.key == key]:
            del meeting.arrivals[rank]
        if not meeting.arrivals:
            self._meeting = None

    def lose(self, rank: int, text: str) -> Answers:
        """Record that a rank is lost for good. Ranks that wait for it now or later get this text."""
        self._lost[rank] = text
        if self._meeting is None or rank >= self._meeting.size:
            return []
        answers = self._meeting.answer_all(refusal(text))
        self._meeting = None
        return answers

    def find(self, rank: int) -> None:
        """Allow a lost rank to come again, because its process is alive."""
        self._lost.pop(rank, None)

    def close(self, generation: int, text: str) -> Answers:
        """Refuse this generation and all older ones, because the elastic driver has ended them."""
        self._closed = generation, text
        if self._meeting is None or self._meeting.generation > generation:
            return []
        answers = self._meeting.answer_all(refusal(text, again=True))
        self._meeting = None
        return answers

    def expire(self, now: float) -> Answers:
        meeting = self._meeting
        if meeting is None:
            return []
        late = [arrival for arrival in meeting.arrivals.values() if arrival.deadline <= now]
        if not late:
            return []
        text = (
            f"waited in vain for {_ranks(meeting.missing())} of {meeting.size} to come to the rendezvous "
            f"(generation {meeting.generation}; present: {_ranks(meeting.arrivals)}). "
            "Did they start? Raise --gloo-timeout-seconds (HOROVOD_GLOO_TIMEOUT_SECONDS) if they are only slow."
        )
        reply = refusal(text, again=self._elastic) | ({"missing": meeting.missing()[0]} if self._elastic else {})
        for arrival in late:
            del meeting.arrivals[arrival.rank]
        if not meeting.arrivals:
            self._meeting = None
        return [(arrival.key, reply) for arrival in late]

    def next_deadline(self) -> float | None:
        if self._meeting is None:
            return None
        return min(arrival.deadline for arrival in self._meeting.arrivals.values())

    @property
    def waiting(self) -> int:
        """The number of ranks that have come to the open meeting."""
        return len(self._meeting.arrivals) if self._meeting is not None else 0

    @property
    def has_met(self) -> bool:
        return self._last_met >= 0

    def who_waits(self) -> str | None:
        """Return a text about the open meeting, or None if no rank waits."""
        meeting = self._meeting
        if meeting is None:
            return None
        here, verb = _ranks(meeting.arrivals), "waits" if len(meeting.arrivals) == 1 else "wait"
        return f"{here} of {meeting.size} {verb} in hvd.init() for {_ranks(meeting.missing())}"

    def _problem_with(self, arrival: Arrival) -> str | None:
        for rank, text in self._lost.items():
            if rank < arrival.size:
                return text
        if arrival.generation <= self._last_met:
            return (
                f"rank {arrival.rank} came with generation {arrival.generation}, "
                f"but generation {self._last_met} has already met: this process is not part of it"
            )
        meeting = self._meeting
        if meeting is None or arrival.generation > meeting.generation:
            return None
        if arrival.generation < meeting.generation:
            return (
                f"rank {arrival.rank} came with generation {arrival.generation}, "
                f"but generation {meeting.generation} has begun: this process is not part of it"
            )
        if arrival.size != meeting.size:
            other = meeting.first()
            return (
                f"rank {arrival.rank} on {arrival.host} says that the world has {arrival.size} ranks, "
                f"rank {other.rank} on {other.host} says {other.size}"
            )
        if (same := meeting.arrivals.get(arrival.rank)) is not None:
            return f"rank {arrival.rank} came twice: from {same.host} and from {arrival.host}"
        return None

    def _conclude(self, meeting: _Meeting) -> Answers:
        self._meeting = None
        arrivals = [meeting.arrivals[rank] for rank in range(meeting.size)]
        if len({arrival.version for arrival in arrivals}) > 1:
            return meeting.answer_all(refusal(version_table(arrivals)))
        self._last_met = meeting.generation
        reply = {"ok": True, "world_id": os.urandom(16).hex(), "infos": [arrival.info for arrival in arrivals]}
        return meeting.answer_all(reply)


def version_table(arrivals: Iterable[Arrival]) -> str:
    """Return the error for a job with mixed versions, with one line for each host and version."""
    ranks_by_line: dict[tuple[str, str], list[int]] = {}
    for arrival in arrivals:
        ranks_by_line.setdefault((arrival.host, arrival.version), []).append(arrival.rank)
    width = max(len("host"), *(len(host) for host, _ in ranks_by_line))
    version_width = max(len("version"), *(len(version) for _, version in ranks_by_line))
    lines = [f"  {'host':{width}}  {'version':{version_width}}  ranks"]
    for (host, version), ranks in ranks_by_line.items():
        lines.append(f"  {host:{width}}  {version:{version_width}}  {_short(ranks)}")
    return "\n".join(["the workers run different versions of khorovod; install the same one everywhere:", *lines])


def _short(ranks: Iterable[int]) -> str:
    """Return ranks as text, cut so that it stays readable in a large world."""
    listed = sorted(ranks)
    shown = ",".join(str(rank) for rank in listed[:16])
    return shown if len(listed) <= 16 else f"{shown},... ({len(listed)} ranks)"


def _ranks(ranks: Iterable[int]) -> str:
    listed = list(ranks)
    return f"rank {listed[0]}" if len(listed) == 1 else f"ranks {_short(listed)}"
