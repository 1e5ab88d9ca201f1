# SPDX-License-Identifier: Apache-2.0
"""Hosts of an elastic job: carry out what host_book.py decides, and report the available slots to the driver."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from horovod.launcher.elastic import host_book
from horovod.launcher.elastic.driving import Driver
from horovod.launcher.elastic.host_book import Book, Gone, HostAction, HostEvent, Offer, Open, Say, Shut
from horovod.launcher.elastic.vocabulary import Discovered, HostGone


class Agents(Protocol):
    """Interface for opening hosts. Its methods do not wait: `Opened` and `NotOpened` come as events."""

    def open(self, hosts: tuple[str, ...]) -> None: ...

    def shut(self, host: str) -> None: ...

    def lost(self) -> list[host_book.Lost]: ...

    def stop(self) -> None:
        """Open no more hosts."""


class NoAgents:
    """Agents of a job that runs on this machine only."""

    def open(self, hosts: tuple[str, ...]) -> None:
        raise AssertionError(f"{hosts} are not this machine")

    def shut(self, host: str) -> None:
        pass

    def lost(self) -> list[host_book.Lost]:
        return []

    def stop(self) -> None:
        pass


class Hosts:
    """Hosts of an elastic job.

    Args:
        rest_s: How long a host that does not answer rests, at least and at most.
    """

    def __init__(
        self, driver: Driver, agents: Agents, say: Callable[[str], None], rest_s: tuple[float, float] | None
    ) -> None:
        self._driver = driver
        self._agents = agents
        self._say = say
        self._book = Book(rest_s if rest_s is not None else host_book.REST_S)

    def tell(self, event: HostEvent) -> None:
        self._book, actions = host_book.decide(self._book, event, time.monotonic())
        for action in actions:
            self._act(action)

    def tell_lost(self) -> None:
        """Report hosts that do not answer any more. Call this before the ends of their workers are reported.

        The driver then does not blame the slots of these workers.
        """
        for lost in self._agents.lost():
            self.tell(lost)

    def stop(self) -> None:
        self._agents.stop()

    def time_left(self) -> float | None:
        moment = self._book.next_time()
        return None if moment is None else max(0.0, moment - time.monotonic())

    def _act(self, action: HostAction) -> None:
        match action:
            case Open(hosts):
                self._agents.open(hosts)
            case Shut(host):
                self._agents.shut(host)
            case Offer(hosts, awaited):
                self._driver.tell(Discovered(hosts, awaited))
            case Gone(host, why):
                self._driver.tell(HostGone(host, f"its host was lost: {why}"))
            case Say(text):
                self._say(text)
