# SPDX-License-Identifier: Apache-2.0
"""Which hosts an elastic job can use: every decision, as a pure function of (book, event, now). hosts.py acts.

    opening --its agent answers--> open --nobody offers it, and nobody runs there--> closed
    opening, open --it does not answer--> resting --after a while--> opening

Only a host that does not answer rests as a whole. A worker that fails is its slot's business (membership.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum

from horovod.launcher.elastic.vocabulary import rest_after

REST_S = (10.0, 300.0)  # without --blacklist-cooldown-range
LASTING_S = 60.0  # a host that was open for so long begins with a short rest again


class Standing(Enum):
    OPENING = "opening"
    OPEN = "open"
    RESTING = "resting"


@dataclass(frozen=True)
class Entry:
    """`until`: when it has rested enough. `failures`: in a row."""

    standing: Standing
    is_here: bool = False
    failures: int = 0
    until: float = math.inf
    since: float = math.inf


# Events


@dataclass(frozen=True)
class Found:
    """The hosts that users offer, and how many slots each has. `here`: which of them are this machine."""

    hosts: dict[str, int]
    here: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Opened:
    host: str


@dataclass(frozen=True)
class NotOpened:
    host: str
    why: str


@dataclass(frozen=True)
class Lost:
    """An open host does not answer any more."""

    host: str
    why: str


@dataclass(frozen=True)
class Pass:
    """Time has passed. `busy`: where workers run."""

    busy: frozenset[str] = frozenset()


HostEvent = Found | Opened | NotOpened | Lost | Pass


# Actions


@dataclass(frozen=True)
class Open:
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class Shut:
    """Forget the host's agent; one that still answers ends."""

    host: str


@dataclass(frozen=True)
class Offer:
    """What can be used now. `awaited`: slots of hosts that may come, or come back."""

    hosts: dict[str, int]
    awaited: int


@dataclass(frozen=True)
class Gone:
    host: str
    why: str


@dataclass(frozen=True)
class Say:
    text: str


HostAction = Open | Shut | Offer | Gone | Say


@dataclass(frozen=True)
class Book:
    rest_s: tuple[float, float] = REST_S
    found: dict[str, int] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)
    offered: tuple[dict[str, int], int] = ({}, 0)

    def next_time(self) -> float | None:
        """When to call again if nothing happens before."""
        times = [entry.until for entry in self.entries.values() if entry.until < math.inf]
        return min(times) if times else None


def decide(book: Book, event: HostEvent, now: float) -> tuple[Book, list[HostAction]]:
    """The book after an event, and what is to be done about it."""
    turn = _Turn(replace(book, entries=dict(book.entries)), now)
    turn.take(event)
    turn.offer()
    return turn.book, turn.actions


class _Turn:
    """One call of `decide`: works on a copy."""

    def __init__(self, book: Book, now: float) -> None:
        self.book = book
        self.now = now
        self.actions: list[HostAction] = []

    def take(self, event: HostEvent) -> None:
        entries = self.book.entries
        match event:
            case Found(hosts, here):
                self._find(hosts, here)
            case Opened(host):
                self._open(host)
            case NotOpened(host, why) if host in entries:
                self._rest(host, f"host {host} cannot be used: {why}", is_news=entries[host].failures == 0)
            case Lost(host, why) if self._has_agent(host):
                if self.now - entries[host].since >= LASTING_S:
                    entries[host] = replace(entries[host], failures=0)
                self.actions += [Gone(host, why), Shut(host)]
                self._rest(host, f"host {host} is lost: {why}", is_news=True)
            case Pass(busy):
                self._pass(busy)

    def _has_agent(self, host: str) -> bool:
        entry = self.book.entries.get(host)
        return entry is not None and entry.standing is Standing.OPEN and not entry.is_here

    def _find(self, hosts: dict[str, int], here: frozenset[str]) -> None:
        entries = self.book.entries
        self.book = replace(self.book, found=dict(hosts))
        for host in [host for host, entry in entries.items() if entry.standing is Standing.RESTING]:
            if host not in hosts:
                del entries[host]
        new = [host for host in hosts if host not in entries]
        for host in new:
            entries[host] = Entry(Standing.OPEN if host in here else Standing.OPENING, is_here=host in here)
        if away := tuple(host for host in new if host not in here):
            self.actions.append(Open(away))

    def _open(self, host: str) -> None:
        entry = self.book.entries.get(host)
        if entry is None or entry.standing is not Standing.OPENING:
            return
        if entry.failures:
            self.actions.append(Say(f"host {host} answers again"))
        self.book.entries[host] = replace(entry, standing=Standing.OPEN, since=self.now, until=math.inf)

    def _rest(self, host: str, text: str, *, is_news: bool) -> None:
        entry = self.book.entries[host]
        if host not in self.book.found:
            del self.book.entries[host]
            return
        rest = rest_after(entry.failures + 1, self.book.rest_s)
        self.book.entries[host] = replace(
            entry, standing=Standing.RESTING, failures=entry.failures + 1, until=self.now + rest
        )
        if is_news:
            self.actions.append(Say(f"{text}\n  it is tried again after {rest:g} s"))

    def _pass(self, busy: frozenset[str]) -> None:
        entries = self.book.entries
        rested = tuple(host for host, entry in entries.items() if entry.until <= self.now)
        for host in rested:
            entries[host] = replace(entries[host], standing=Standing.OPENING, until=math.inf)
        if rested:
            self.actions.append(Open(rested))
        for host in [host for host in entries if host not in self.book.found and host not in busy]:
            if entries[host].standing is Standing.OPEN:
                if not entries[host].is_here:
                    self.actions.append(Shut(host))
                del entries[host]

    def offer(self) -> None:
        """If it is another than before."""
        open_ones = {host for host, entry in self.book.entries.items() if entry.standing is Standing.OPEN}
        hosts = {host: slots for host, slots in self.book.found.items() if host in open_ones}
        awaited = sum(slots for host, slots in self.book.found.items() if host not in open_ones)
        if (hosts, awaited) != self.book.offered:
            self.book = replace(self.book, offered=(hosts, awaited))
            self.actions.append(Offer(hosts, awaited))
