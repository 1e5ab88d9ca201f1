# SPDX-License-Identifier: Apache-2.0
"""The driver of an elastic job: keeps its state, passes on what is decided, and says it.

It knows no command line, signal or terminal: whoever holds it (the launcher's loop in job.py, an actor) has a
rendezvous and a placer, and tells it what happens. `run` is the loop for a holder that has nothing else to do:

    mail: Mail[Event] = Mail()
    ready, reported = (lambda *told: mail.put(Ready(*told))), (lambda *told: mail.put(reported_by(*told)))
    with Server(address, secret=secret, on_ready=ready, on_report=reported) as rendezvous:
        driver = Driver(limits, rendezvous, placer, say)
        driver.tell(Discovered({"a": 2, "b": 2}))
        outcome = driver.run(mail)  # what happens to workers and hosts: mail.put(Ended(...)), mail.put(HostGone(...))
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from horovod.common import settings
from horovod.launcher.elastic import words
from horovod.launcher.elastic.cuts import Cuts
from horovod.launcher.elastic.mail import Mail
from horovod.launcher.elastic.membership import decide
from horovod.launcher.elastic.places import Place
from horovod.launcher.elastic.progress import Ask, Stuck, Watch, look
from horovod.launcher.elastic.state import State, planned_places
from horovod.launcher.elastic.vocabulary import (
    Action,
    Announce,
    Call,
    Close,
    CutOff,
    Dismiss,
    Ended,
    Event,
    Excuse,
    GiveUp,
    Healed,
    Limits,
    Notify,
    Phase,
    Probe,
    Probed,
    Signal,
    Slot,
    Start,
    Tick,
    Told,
    Waiting,
)

_PATIENCE = 3  # times the engine's: here a thread of Python answers, which a long call of another may hold up


def silence_limit_s(environ: Mapping[str, str]) -> float:
    """For Limits.silence_s."""
    return _PATIENCE * float(settings.value_of("HOROVOD_PEER_TIMEOUT_SECONDS", environ) or 0)


def timeout_s(given: float | None, environ: Mapping[str, str]) -> float:
    """For Limits.timeout_s: as given, else as in the environment."""
    return float(given if given is not None else settings.value_of("HOROVOD_ELASTIC_TIMEOUT", environ) or 600)


class WorkerPlacer(Protocol):
    """Starts workers in slots and signals them, without waiting. Whatever becomes of them is an event for the driver.

    Environment of a worker: the rendezvous, and horovod.common.joining.elastic_place.worker_variables.
    """

    def start(self, birth: int, slot: Slot, planned: Place) -> None:
        """Start a worker. `planned`: the place that it will probably have; the driver may give it another one."""

    def signal(self, birth: int, number: int) -> None: ...


class Rendezvous(Protocol):
    """What the driver asks of horovod.common.rendezvous.server.Server."""

    def give_places(self, places: Mapping[int, Mapping[str, Any]], generation: int) -> None: ...

    def dismiss(self, birth: int, text: str) -> None: ...

    def excuse(self, birth: int, may_stay: bool) -> None: ...

    def excuse_nobody(self) -> None: ...

    def close_generation(self, generation: int, text: str) -> None: ...

    def notify(self, births: Iterable[int], message: Mapping[str, Any]) -> None: ...


@dataclass
class Outcome:
    """`worker`: the birth id of the one whose failure ended the job, if one's did."""

    exit_code: int = 0
    text: str = ""
    worker: int | None = None


class Driver:
    """`address_of`: the address at which the workers of a host are reached, if it is not the one they know already.

    `shows_end`: print why the job is ended as soon as that is decided. Without it, the holder has to print that.
    `probe`: lets hosts try to reach each other, without waiting; `Probed` comes as an event. None: all of them do.
    """

    def __init__(
        self,
        limits: Limits,
        rendezvous: Rendezvous,
        placer: WorkerPlacer,
        say: Callable[[str], None],
        *,
        verbose: bool = False,
        shows_end: bool = True,
        address_of: Callable[[str], str | None] = lambda host: None,
        probe: Callable[[Probe], None] | None = None,
    ) -> None:
        self.state = State(limits, cuts=Cuts(limits.probe_every_s))
        self.slots: dict[int, Slot] = {}  # by birth id, of all workers that there ever were
        self._rendezvous = rendezvous
        self._placer = placer
        self._say = say
        self._verbose = verbose
        self._shows_end = shows_end
        self._address_of = address_of
        self._probe = probe
        self._outcome = Outcome()
        self._watch = Watch(limits.progress_timeout_s, limits.replace_stuck)
        self._killed: dict[int, str] = {}  # by birth id, why
        self._is_stopped = False

    def run(self, mail: Mail[Event]) -> Outcome:
        """Until the job is over. Workers that still run then are the placer's to end."""
        self.tell(Tick())  # the time limit also counts if nothing ever happens
        while not self.is_over:
            mail.wait(self.time_left())
            for event in mail.take():
                self.tell(event)
            self.tell(Tick())
        return self.outcome

    def stop(self) -> None:
        """Decide nothing more. From another thread: put a Tick into the mail too, so that `run` notices."""
        self._is_stopped = True
        self._rendezvous.excuse_nobody()  # whoever gets SIGTERM now is to end

    @property
    def is_over(self) -> bool:
        return self._is_stopped or self.state.over or (self.state.finished and not self.state.workers)

    @property
    def outcome(self) -> Outcome:
        if self.state.finished and self.state.generation < 0 and self.state.first_failure is not None:
            code, why, worker = self.state.first_failure  # of programs that never met
            return Outcome(code, f"the elastic job has failed: {why}", worker)
        return self._outcome

    def time_left(self) -> float | None:
        """Until a Tick is wanted, if nothing happens before."""
        moments = [moment for moment in (self.state.next_time(), self._watch.next_time()) if moment is not None]
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def tell(self, event: Event) -> None:
        if self._is_stopped:
            return
        if isinstance(event, Ended) and event.birth in self._killed:
            event = replace(event, how=self._killed[event.birth])
        before = self.state
        self.state, actions = decide(before, event, time.monotonic())
        self._say_who_failed(before)
        starts = [one.birth for one in actions if isinstance(one, Start)]
        planned = planned_places(starts, self.state) if starts else {}
        for action in actions:
            self._act(action, planned)
        for probed in [Probed(one.number) for one in actions if isinstance(one, Probe) and self._probe is None]:
            self.tell(probed)
        self._look(event if isinstance(event, Told) else None)

    def _say_who_failed(self, before: State) -> None:
        """Before they were members; of those who were, the next generation tells."""
        for failure in self.state.history:
            if failure not in before.history and failure.birth not in before.members:
                self._say(words.failed(failure, self.state.rests_until.get(failure.slot), time.monotonic()))

    def _look(self, told: Told | None) -> None:
        """Whether all members make progress."""
        workers = self.state.workers if not self.state.over else {}
        members = [birth for birth, worker in workers.items() if worker.phase is Phase.MEMBER]
        self._watch, actions = look(self._watch, members, told, time.monotonic())
        for action in actions:
            match action:
                case Ask(births, stacks):
                    self._rendezvous.notify(births, {"ask": "progress", "stacks": list(stacks)})
                case Stuck(birth, idle_s):
                    self._say(words.stuck(action, workers[birth]))
                    if action.kill:
                        self._killed[birth] = f"it made no progress for {idle_s:.0f} s, so it was killed"
                        self._placer.signal(birth, signal.SIGKILL)

    def _act(self, action: Action, planned: Mapping[int, Place]) -> None:
        match action:
            case Start(birth, slot):
                self.slots[birth] = slot
                self._placer.start(birth, slot, planned[birth])
            case Signal(birth, number):
                self._placer.signal(birth, number)
            case Dismiss(birth, why):
                self._dismiss(birth, why)
            case Excuse(birth, may_stay):
                self._rendezvous.excuse(birth, may_stay)
            case Close(generation, why):
                self._rendezvous.close_generation(generation, why)
            case Announce(generation):
                self._rendezvous.give_places(self._places(action), generation)
                if generation > 0 or self._verbose:
                    self._say(words.announcement(action, self.slots))
            case Notify(births) | Call(births):
                self._rendezvous.notify(births, _message(action))
            case Probe():
                self._begin_probe(action)
            case Waiting() | CutOff() | Healed():
                self._tell_user(action)
            case GiveUp():
                self._give_up(action)

    def _dismiss(self, birth: int, why: str) -> None:
        self._rendezvous.dismiss(birth, why)
        if birth not in self.state.workers:
            self._say(f"worker {birth} came too late, and was sent away: {why}")

    def _begin_probe(self, action: Probe) -> None:
        if self._probe is not None:
            self._probe(action)

    def _tell_user(self, action: Waiting | CutOff | Healed) -> None:
        if isinstance(action, Waiting):
            self._say(words.waiting(action, self.state.limits.timeout_s))
        elif isinstance(action, CutOff):
            self._say(words.cut_off(action, self.slots))
        else:
            self._say(words.healed(action))

    def _give_up(self, action: GiveUp) -> None:
        self._rendezvous.excuse_nobody()
        self._outcome = Outcome(action.code, f"the elastic job is ended: {action.why}", action.worker)
        if self._shows_end:
            self._say(words.end(self._outcome.text, action.failures))

    def _places(self, announced: Announce) -> dict[int, dict[str, Any]]:
        places: dict[int, dict[str, Any]] = {birth: asdict(place) for birth, place in announced.places.items()}
        for birth, place in places.items():
            if (address := self._address_of(self.slots[birth][0])) is not None:
                place["address"] = address
            place["seen"] = [one.packed() for one in self.state.seen.values()]
        return places


def _message(action: Notify | Call) -> dict[str, Any]:
    """For workers that listen."""
    if isinstance(action, Call):
        return {"ask": "progress", "stacks": []}
    return {"generation": action.generation, "timestamp": time.time(), "update": action.update}
