# SPDX-License-Identifier: Apache-2.0
"""Places of ElasticDriver's workers by host and slot, for callers in any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from horovod.common.joining.elastic_place import worker_variables
from horovod.common.rendezvous.server import Server
from horovod.launcher.elastic.places import Place
from horovod.launcher.elastic.vocabulary import Slot
from horovod.launcher.start.hosts import SlotInfo

_NONE = dict.fromkeys(("rank", "local_rank", "cross_rank", "size", "local_size", "cross_size"), -1)


@dataclass(frozen=True)
class ElasticSlot(SlotInfo):
    """Place of one worker of an elastic job, with the variables that create_slot_env_vars adds to its environment."""

    birth: int
    variables: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)  # contains the secret


class Plan:
    """Places of all workers by birth id: the planned ones until the first generation is announced.

    `init` receives each plan, like RendezvousServer.init.
    """

    def __init__(self, init: Callable[[list[SlotInfo]], object] = lambda plan: None) -> None:
        self._init = init
        self._changed = threading.Condition()
        self._slots: dict[int, Slot] = {}  # slots of running workers by birth id, as they were at their start
        self._hosts: dict[int, str] = {}  # by birth id, of all workers that ever started
        self._places: dict[int, ElasticSlot] = {}  # valid places by birth id
        self._rounds: dict[int, int] = {}  # by birth id, how often the worker's request for a place was answered
        self._started = 0
        self._generation = -1
        self._is_over = False

    def begin(self, birth: int, slot: Slot, place: Place, variables: Mapping[str, str]) -> ElasticSlot:
        """Record that a worker is started, and return its slot."""
        own = {**worker_variables(birth, slot[0], place), **variables}
        found = ElasticSlot(hostname=slot[0], **vars(place), birth=birth, variables=own)
        with self._changed:
            self._slots[birth] = slot
            self._hosts[birth] = slot[0]
            self._started += 1
            if self._generation < 0:
                self._places[birth] = found
            self._changed.notify_all()
        return found

    def end(self, birth: int) -> None:
        """Record that a worker has ended."""
        with self._changed:
            self._slots.pop(birth, None)
            if self._generation < 0:
                self._places.pop(birth, None)
            self._answer([birth])

    def announce(self, places: Mapping[int, Mapping[str, Any]], generation: int) -> None:
        """Make the places of a new generation valid. A worker in it may have ended unnoticed."""
        with self._changed:
            numbers = {birth: {name: place[name] for name in _NONE} for birth, place in places.items()}
            self._places = {
                birth: ElasticSlot(hostname=self._hosts[birth], **own, birth=birth) for birth, own in numbers.items()
            }
            self._generation = generation
            self._answer(places)
        self._init(self.in_order())

    def refuse(self, birth: int) -> None:
        """Record that a worker has no place any more."""
        with self._changed:
            self._places.pop(birth, None)
            self._answer([birth])

    def close(self) -> None:
        """Wake all waiting threads, because the job is over."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def await_starts(self, count: int) -> None:
        """Wait until `count` workers were started or the job is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._started >= count)

    def await_place(self, host: str, slot: int, ask: Callable[[int], None]) -> None:
        """Ask for the place of the worker in a slot, and wait until it has one or cannot have one."""
        with self._changed:
            birth = self._birth_in(host, slot)
            if birth is None:
                return
            before = self._rounds.get(birth, 0)
            ask(birth)
            self._changed.wait_for(lambda: self._is_over or self._rounds.get(birth, 0) > before)

    def in_order(self) -> list[SlotInfo]:
        """Return the valid places, by rank."""
        with self._changed:
            return sorted(self._places.values(), key=lambda place: place.rank)

    def place_in(self, host: str, slot: int) -> SlotInfo:
        """Return the place of the worker that was started in a slot. All its numbers are -1 if it has none."""
        with self._changed:
            birth = self._birth_in(host, slot)
            found = self._places.get(birth) if birth is not None else None
            return found if found is not None else SlotInfo(hostname=host, **_NONE)

    def _birth_in(self, host: str, slot: int) -> int | None:
        return max((birth for birth, own in self._slots.items() if own == (host, slot)), default=None)

    def _answer(self, births: Iterable[int]) -> None:
        for birth in births:
            self._rounds[birth] = self._rounds.get(birth, 0) + 1
        self._changed.notify_all()


class PlannedRendezvous:
    """Rendezvous for the driver that records decisions in a plan and passes them on to the server, if there is one."""

    def __init__(self, plan: Plan, server: Server | None) -> None:
        self._plan = plan
        self._server = server

    def give_places(self, places: Mapping[int, Mapping[str, Any]], generation: int) -> None:
        self._plan.announce(places, generation)
        if self._server is not None:
            self._server.give_places(places, generation)

    def dismiss(self, birth: int, text: str) -> None:
        self._plan.refuse(birth)
        if self._server is not None:
            self._server.dismiss(birth, text)

    def excuse(self, birth: int, may_stay: bool) -> None:
        if self._server is not None:
            self._server.excuse(birth, may_stay)

    def excuse_nobody(self) -> None:
        if self._server is not None:
            self._server.excuse_nobody()

    def close_generation(self, generation: int, text: str) -> None:
        if self._server is not None:
            self._server.close_generation(generation, text)

    def notify(self, births: Iterable[int], message: Mapping[str, Any]) -> None:
        if self._server is not None:
            self._server.notify(births, message)
