# SPDX-License-Identifier: Apache-2.0
"""Workers of an elastic job that wait for an answer or for messages of the driver, by worker id.

A worker waits for a place, for permission to stay after SIGTERM, or for messages about hosts. This module uses no
sockets: the driver decides, and the rendezvous server sends the answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from horovod.common.rendezvous.meeting import Answers, Reply, refusal


class WaitingList:
    """Waiting workers. `key` identifies the receiver of an answer (the server's connection)."""

    def __init__(self) -> None:
        self._waiting: dict[int, Hashable] = {}
        self._listening: dict[int, Hashable] = {}
        self._preempted: dict[int, Hashable] = {}
        self._excuses_nobody = False

    def ask(self, birth: int, key: Hashable) -> None:
        """Record that a worker waits for its place. If it asks again, it has lost its former connection."""
        self._waiting[birth] = key

    def listen(self, birth: int, key: Hashable) -> Answers:
        """Record that a worker wants messages about hosts while it is connected."""
        self._listening[birth] = key
        return [(key, {"ok": True})]

    def give(self, places: Mapping[int, Mapping[str, Any]], generation: int) -> Answers:
        """Answer waiting workers with their places in a generation, by worker id."""
        found = [(self._waiting.pop(birth), place) for birth, place in places.items() if birth in self._waiting]
        return [(key, {"ok": True, "generation": generation, "place": dict(place)}) for key, place in found]

    def dismiss(self, birth: int, text: str) -> Answers:
        """Answer a waiting worker that it is not part of the job any more."""
        if birth not in self._waiting:
            return []
        reply: Reply = refusal(text) | {"dismissed": True}
        return [(self._waiting.pop(birth), reply)]

    def preempted(self, birth: int, key: Hashable) -> Answers:
        """Record that a worker got SIGTERM and asks whether it may stay until the next commit."""
        self._preempted[birth] = key
        return self.excuse(birth, False) if self._excuses_nobody else []

    def excuse(self, birth: int, may_stay: bool) -> Answers:
        if birth not in self._preempted:
            return []
        return [(self._preempted.pop(birth), {"ok": True} if may_stay else refusal("this worker is to end at once"))]

    def excuse_nobody(self) -> Answers:
        """Refuse workers that got SIGTERM, now and later, because the job ends."""
        self._excuses_nobody = True
        return [answer for birth in list(self._preempted) for answer in self.excuse(birth, False)]

    def notify(self, births: Iterable[int], message: Reply) -> Answers:
        return [(self._listening[birth], message) for birth in births if birth in self._listening]

    def leave(self, key: Hashable) -> None:
        """Remove the worker whose connection is gone."""
        for table in (self._waiting, self._listening, self._preempted):
            for birth in [birth for birth, where in table.items() if where == key]:
                del table[birth]
