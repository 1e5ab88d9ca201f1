# SPDX-License-Identifier: Apache-2.0
"""Driver of an elastic job: keeps the state, carries out what membership.py decides, and prints messages.

It knows no command line, signal or terminal. Its owner (the launcher's loop in job.py, or an actor) supplies a
rendezvous and a placer, and passes it the events. An owner that has nothing else to do calls `run`:

    mail: Mail[Event] = Mail()
    ready, reported = (lambda *told: mail.put(Ready(*told))), (lambda *told: mail.put(reported_by(*told)))
    with Server(address, secret=secret, on_ready=ready, on_report=reported) as rendezvous:
        driver = Driver(limits, rendezvous, placer, say)
        driver.tell(Discovered({"a": 2, "b": 2}))
        outcome = driver.run(mail)  # report ends and lost hosts: mail.put(Ended(...)), mail.put(HostGone(...))
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

# factor on the engine's peer timeout, because a Python thread answers, and a long call in another thread delays it
_PATIENCE = 3


def silence_limit_s(environ: Mapping[str, str]) -> float:
    """Return Limits.silence_s for this environment."""
    return _PATIENCE * float(settings.value_of("HOROVOD_PEER_TIMEOUT_SECONDS", environ) or 0)


def timeout_s(given: float | None, environ: Mapping[str, str]) -> float:
    """Return Limits.timeout_s: the given value, or the setting in the environment."""
    return float(given if given is not None else settings.value_of("HOROVOD_ELASTIC_TIMEOUT", environ) or 600)


class WorkerPlacer(Protocol):
    """Interface for starting workers in slots and signalling them, without waiting.

    Their ends reach the driver as events.

    A worker's environment holds the rendezvous and horovod.common.joining.elastic_place.worker_variables.
    """

    def start(self, birth: int, slot: Slot, planned: Place) -> None:
        """Start a worker. `planned` is its probable place; the driver may assign another one."""

    def signal(self, birth: int, number: int) -> None: ...


class Rendezvous(Protocol):
    """Interface that the driver uses of horovod.common.rendezvous.server.Server."""

    def give_places(self, places: Mapping[int, Mapping[str, Any]], generation: int) -> None: ...

    def dismiss(self, birth: int, text: str) -> None: ...

    def excuse(self, birth: int, may_stay: bool) -> None: ...

    def excuse_nobody(self) -> None: ...

    def close_generation(self, generation: int, text: str) -> None: ...

    def notify(self, births: Iterable[int], message: Mapping[str, Any]) -> None: ...


@dataclass
class Outcome:
    """Outcome of a job. `worker` is the birth id of the worker whose failure ended the job, if any."""

    exit_code: int = 0
    text: str = ""
    worker: int | None = None


class Driver:
    """Driver of one elastic job.

    Args:
        address_of: Returns the address at which a host's workers are reached, or None if it is the one they know
            already.
        shows_end: Print why the job ends as soon as that is decided. Otherwise the owner has to print it.
        probe: Lets hosts try to reach each other, without waiting; the answer is the event `Probed`. Without it, all
            hosts count as reachable.
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
        self.slots: dict[int, Slot] = {}  # by birth id, of all past and present workers
        self._rendezvous = rendezvous
        self._placer = placer
        self._say = say
        self._verbose = verbose
        self._shows_end = shows_end
        self._address_of = address_of
        self._probe = probe
        self._outcome = Outcome()
        self._watch = Watch(limits.progress_timeout_s, limits.replace_stuck)
        self._killed: dict[int, str] = {}  # reasons for killing workers, by birth id
        self._is_stopped = False

    def run(self, mail: Mail[Event]) -> Outcome:
        """Handle events until the job is over. The placer has to end workers that still run then."""
        self.tell(Tick())  # start the time limit even if no event ever comes
        while not self.is_over:
            mail.wait(self.time_left())
            for event in mail.take():
                self.tell(event)
            self.tell(Tick())
        return self.outcome

    def stop(self) -> None:
        """Make no further decisions.

        A caller in another thread must also put a Tick into the mail, which wakes `run`.
        """
        self._is_stopped = True
        self._rendezvous.excuse_nobody()  # a worker that gets SIGTERM from now on must end

    @property
    def is_over(self) -> bool:
        return self._is_stopped or self.state.over or (self.state.finished and not self.state.workers)

    @property
    def outcome(self) -> Outcome:
        if self.state.finished and self.state.generation < 0 and self.state.first_failure is not None:
            code, why, worker = self.state.first_failure  # the programs ended without ever calling hvd.init()
            return Outcome(code, f"the elastic job has failed: {why}", worker)
        return self._outcome

    def time_left(self) -> float | None:
        """Return the seconds until the driver needs a Tick, or None if it needs none."""
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
        """Report workers that failed before they became members.

        Failures of members are reported with the next generation.
        """
        for failure in self.state.history:
            if failure not in before.history and failure.birth not in before.members:
                self._say(words.failed(failure, self.state.rests_until.get(failure.slot), time.monotonic()))

    def _look(self, told: Told | None) -> None:
        """Ask members for their progress, and report or kill the ones that make none."""
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
    """Return the message for workers that listen."""
    if isinstance(action, Call):
        return {"ask": "progress", "stacks": []}
    return {"generation": action.generation, "timestamp": time.time(), "update": action.update}
