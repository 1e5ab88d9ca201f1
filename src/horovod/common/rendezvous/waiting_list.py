# SPDX-License-Identifier: Apache-2.0
"""Workers of an elastic job that wait for the driver's word, by birth id: a place to take, or news of other hosts.

Pure bookkeeping, like meeting.py; the driver decides, and the rendezvous server carries the answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from horovod.common.rendezvous.meeting import Answers, Reply, refusal


class WaitingList:
    """`key` is where an answer goes (the server's connection)."""

    def __init__(self) -> None:
        self._waiting: dict[int, Hashable] = {}
        self._listening: dict[int, Hashable] = {}

    def ask(self, birth: int, key: Hashable) -> None:
        """A worker waits for its place. One that asks again has lost its former connection."""
        self._waiting[birth] = key

    def listen(self, birth: int, key: Hashable) -> Answers:
        """A worker wants to hear of other hosts for as long as it is connected."""
        self._listening[birth] = key
        return [(key, {"ok": True})]

    def give(self, places: Mapping[int, Mapping[str, Any]], generation: int) -> Answers:
        """The places of a generation, by birth id."""
        found = [(self._waiting.pop(birth), place) for birth, place in places.items() if birth in self._waiting]
        return [(key, {"ok": True, "generation": generation, "place": dict(place)}) for key, place in found]

    def dismiss(self, birth: int, text: str) -> Answers:
        """The worker is not part of the job any more."""
        if birth not in self._waiting:
            return []
        reply: Reply = refusal(text) | {"dismissed": True}
        return [(self._waiting.pop(birth), reply)]

    def notify(self, births: Iterable[int], message: Reply) -> Answers:
        return [(self._listening[birth], message) for birth in births if birth in self._listening]

    def leave(self, key: Hashable) -> None:
        """A connection is gone."""
        for table in (self._waiting, self._listening):
            for birth in [birth for birth, where in table.items() if where == key]:
                del table[birth]
