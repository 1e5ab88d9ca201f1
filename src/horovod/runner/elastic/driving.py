# SPDX-License-Identifier: Apache-2.0
"""The driver of an elastic job: keeps its state, passes on what is decided, and says it.

It knows no command line, signal or terminal: whoever holds it (the launcher's loop in job.py, an actor) has a
rendezvous and a placer, and tells it what happens. `run` is the loop for a holder that has nothing else to do:

    mail: Mail[Event] = Mail()
    with Server(address, secret=secret, on_ready=lambda birth, lost: mail.put(Ready(birth, lost))) as rendezvous:
        driver = Driver(limits, rendezvous, placer, say)
        driver.tell(Discovered({"a": 2, "b": 2}))
        outcome = driver.run(mail)  # what happens to workers and hosts: mail.put(Ended(...)), mail.put(HostGone(...))
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from horovod.runner.elastic import words
from horovod.runner.elastic.mail import Mail
from horovod.runner.elastic.membership import State, decide
from horovod.runner.elastic.vocabulary import (
    Action,
    Announce,
    Close,
    Dismiss,
    Event,
    GiveUp,
    Limits,
    Notify,
    Signal,
    Slot,
    Start,
    Tick,
    Waiting,
)


class WorkerPlacer(Protocol):
    """Starts workers in slots and signals them, without waiting. Whatever becomes of them is an event for the driver.

    Environment of a worker: HOROVOD_BIRTH_ID, HOROVOD_HOSTNAME (the slot's), HOROVOD_ELASTIC=1 and the rendezvous, but
    nothing of ranks.
    """

    def start(self, birth: int, slot: Slot) -> None: ...

    def signal(self, birth: int, number: int) -> None: ...


class Rendezvous(Protocol):
    """What the driver asks of horovod.common.rendezvous.server.Server."""

    def give_places(self, places: Mapping[int, Mapping[str, Any]], generation: int) -> None: ...

    def dismiss(self, birth: int, text: str) -> None: ...

    def close_generation(self, generation: int, text: str) -> None: ...

    def notify(self, births: Iterable[int], message: Mapping[str, Any]) -> None: ...


@dataclass
class Outcome:
    """`worker`: the birth id of the one whose failure ended the job, if one's did."""

    exit_code: int = 0
    text: str = ""
    worker: int | None = None


class Driver:
    """`address_of`: the address at which the workers of a host are reached, if it is not the one they know already."""

    def __init__(
        self,
        limits: Limits,
        rendezvous: Rendezvous,
        placer: WorkerPlacer,
        say: Callable[[str], None],
        *,
        verbose: bool = False,
        address_of: Callable[[str], str | None] = lambda host: None,
    ) -> None:
        self.state = State(limits)
        self.slots: dict[int, Slot] = {}  # by birth id, of all workers that there ever were
        self._rendezvous = rendezvous
        self._placer = placer
        self._say = say
        self._verbose = verbose
        self._address_of = address_of
        self._outcome = Outcome()
        self._is_stopped = False

    def run(self, mail: Mail[Event]) -> Outcome:
        """Until the job is over. Workers that still run then are the placer's to end."""
        while not self.is_over:
            mail.wait(self.time_left())
            for event in mail.take():
                self.tell(event)
            self.tell(Tick())
        return self.outcome

    def stop(self) -> None:
        """Decide nothing more. From another thread: put a Tick into the mail too, so that `run` notices."""
        self._is_stopped = True

    @property
    def is_over(self) -> bool:
        return self._is_stopped or self.state.over or (self.state.finished and not self.state.workers)

    @property
    def outcome(self) -> Outcome:
        if self.state.finished and self.state.generation < 0 and self.state.first_failure is not None:
            return Outcome(*self.state.first_failure)  # of programs that never met
        return self._outcome

    def time_left(self) -> float | None:
        """Until a Tick is wanted, if nothing happens before."""
        moment = self.state.next_time()
        return None if moment is None else max(0.0, moment - time.monotonic())

    def tell(self, event: Event) -> None:
        if self._is_stopped:
            return
        self.state, actions = decide(self.state, event, time.monotonic())
        for action in actions:
            self._act(action)

    def _act(self, action: Action) -> None:
        match action:
            case Start(birth, slot):
                self.slots[birth] = slot
                self._placer.start(birth, slot)
            case Signal(birth, number):
                self._placer.signal(birth, number)
            case Dismiss(birth, why):
                self._rendezvous.dismiss(birth, why)
                if birth not in self.state.workers:
                    self._say(f"worker {birth} came too late, and was sent away: {why}")
            case Close(generation, why):
                self._rendezvous.close_generation(generation, why)
            case Announce(generation):
                self._rendezvous.give_places(self._places(action), generation)
                if generation > 0 or self._verbose:
                    self._say(words.announcement(action, self.slots))
            case Notify(births, generation, update):
                message = {"generation": generation, "timestamp": time.time(), "update": update}
                self._rendezvous.notify(births, message)
            case Waiting():
                self._say(words.waiting(action, self.state.limits.timeout_s))
            case GiveUp(why, code, worker):
                self._outcome = Outcome(code, f"the elastic job is ended: {why}", worker)
                self._say(self._outcome.text)

    def _places(self, announced: Announce) -> dict[int, dict[str, Any]]:
        places: dict[int, dict[str, Any]] = {birth: asdict(place) for birth, place in announced.places.items()}
        for birth, place in places.items():
            if (address := self._address_of(self.slots[birth][0])) is not None:
                place["address"] = address
        return places
