# SPDX-License-Identifier: Apache-2.0
"""Decisions about the usable hosts of an elastic job, as a pure function of (book, event, now).

hosts.py carries them out.

    opening --its agent answers--> open --it is not offered any more, and no worker runs there--> closed
    opening, open --it does not answer--> resting --after a while--> opening

Only a host that does not answer rests as a whole. A worker's failure affects only its slot (membership.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum

from horovod.launcher.elastic.vocabulary import rest_after

REST_S = (10.0, 300.0)  # seconds, used without --blacklist-cooldown-range
LASTING_S = 60.0  # a host that was open for this time starts with a short rest again


class Standing(Enum):
    OPENING = "opening"
    OPEN = "open"
    RESTING = "resting"


@dataclass(frozen=True)
class Entry:
    """State of one host. `until` is when its rest is over, `failures` the number of failures in a row."""

    standing: Standing
    is_here: bool = False
    failures: int = 0
    until: float = math.inf
    since: float = math.inf


# Events


@dataclass(frozen=True)
class Found:
    """Event: the hosts that the user offers, with the number of slots of each.

    `here` holds the names of this machine.
    """

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
    """Event: an open host does not answer any more."""

    host: str
    why: str


@dataclass(frozen=True)
class Pass:
    """Event: time has passed. `busy` holds the hosts on which workers run."""

    busy: frozenset[str] = frozenset()


HostEvent = Found | Opened | NotOpened | Lost | Pass


# Actions


@dataclass(frozen=True)
class Open:
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class Shut:
    """Action: release the host's agent, which then ends."""

    host: str


@dataclass(frozen=True)
class Offer:
    """Action: offer hosts to the driver. `awaited` counts the slots of hosts that may appear or come back."""

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
        """Return when to call again if no event comes before, or None."""
        times = [entry.until for entry in self.entries.values() if entry.until < math.inf]
        return min(times) if times else None


def decide(book: Book, event: HostEvent, now: float) -> tuple[Book, list[HostAction]]:
    """Return the book after an event, and the actions to take."""
    turn = _Turn(replace(book, entries=dict(book.entries)), now)
    turn.take(event)
    turn.offer()
    return turn.book, turn.actions


class _Turn:
    """One call of `decide`, which works on a copy of the book."""

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
        """Offer the usable hosts to the driver if they have changed."""
        open_ones = {host for host, entry in self.book.entries.items() if entry.standing is Standing.OPEN}
        hosts = {host: slots for host, slots in self.book.found.items() if host in open_ones}
        awaited = sum(slots for host, slots in self.book.found.items() if host not in open_ones)
        if (hosts, awaited) != self.book.offered:
            self.book = replace(self.book, offered=(hosts, awaited))
            self.actions.append(Offer(hosts, awaited))
