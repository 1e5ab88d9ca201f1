# SPDX-License-Identifier: Apache-2.0
"""Runs an elastic job: carries out what membership.py decides, and tells it what happens.

One loop waits for signals, the workers' ends, workers that ask for a place, discovered hosts, and time.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from horovod.common.joining.elastic_place import BIRTH_VARIABLE
from horovod.runner import processes
from horovod.runner.elastic import membership, words
from horovod.runner.elastic.mail import Mail
from horovod.runner.ending import Ending, suspend_if_asked
from horovod.runner.job import JobResult
from horovod.runner.output import OutputForwarder, OutputOptions
from horovod.runner.placement import Placer
from horovod.runner.processes import GuardianLostError, describe_exit
from horovod.runner.stop_signals import StopSignals
from horovod.runner.supervision import GRACE_S, Supervision
from horovod.runner.user_output import UserOutput

if TYPE_CHECKING:
    from horovod.common.rendezvous.server import Server

_READ_LIMIT_S = 1.0
_NOT_STARTED = 127


@dataclass(frozen=True)
class ElasticSpec:
    """What to run. `env` holds everything but what makes one worker different from another."""

    command: Sequence[str]
    env: Mapping[str, str]
    output: OutputOptions
    limits: membership.Limits
    hosts: Mapping[str, int]
    host_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    verbose: bool = False
    grace_s: float = GRACE_S


class ElasticJob:
    """One run. Workers are known to the placer and to the output by their birth ids. Use `run()` once."""

    def __init__(self, spec: ElasticSpec, server: Server, placer: Placer, output: UserOutput, mail: Mail) -> None:
        self._spec = spec
        self._server = server
        self._placer = placer
        self._output = output
        self._mail = mail
        self._signals = StopSignals()
        self._forwarder = OutputForwarder(spec.output, output, self._signals.ring)
        self._supervision = Supervision(grace_s=spec.grace_s)
        self._state = membership.State(spec.limits)
        self._slots: dict[int, membership.Slot] = {}
        self._running: set[int] = set()  # birth ids that were started and have not ended
        self._has_started = False
        self._selector = selectors.DefaultSelector()
        self._ending = Ending(placer, self._selector, self._signals, output)
        self._sent: int | None = None
        self._result = JobResult()

    def run(self) -> JobResult:
        with self._signals:
            for source in (self._signals, self._placer, self._mail):
                self._selector.register(source, selectors.EVENT_READ)
            self._forwarder.start()
            try:
                self._tell(membership.Discovered(dict(self._spec.hosts)))
                while self._is_under_way():
                    self._step()
            finally:
                self._finish()
        if self._state.finished and self._state.generation < 0 and self._state.first_failure is not None:
            self._result.exit_code, self._result.text = self._state.first_failure  # of programs that never met
        if self._supervision.stop_signal is not None:
            self._result.exit_code = self._supervision.exit_code()
            self._result.stop_signal = self._supervision.stop_signal
        return self._result

    @property
    def _is_stopping(self) -> bool:
        return self._supervision.stop_signal is not None

    def _is_under_way(self) -> bool:
        if self._is_stopping:
            return bool(self._running) and self._supervision.state.value != "given up"
        return not self._state.over and not (self._state.finished and not self._running)

    def _step(self) -> None:
        self._selector.select(self._time_left())
        suspend_if_asked(self._signals, self._placer)
        for number in self._signals.take():
            self._on_signal(number)
        for event in self._placer.events():
            self._on_event(event)
        for news in self._mail.take():
            self._tell(news)
        self._send(self._supervision.on_time(time.monotonic()))
        self._tell(membership.Tick())

    def _time_left(self) -> float | None:
        times = [moment for moment in (self._state.next_time(), self._supervision.deadline) if moment is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _on_signal(self, number: int) -> None:
        action = self._supervision.on_signal(number, time.monotonic())
        name = signal.Signals(number).name
        if action == signal.SIGKILL:
            self._output.say(f"{name} again: killing the workers")
        elif action is not None:
            again = "; Ctrl-C again kills them" if number == signal.SIGINT else ""
            self._output.say(f"{name}: the workers have {self._spec.grace_s:g} s to end{again}")
        self._send(action)

    def _send(self, number: int | None) -> None:
        if number is None:
            return
        self._sent = number
        self._forwarder.read_out(self._running)
        for birth in self._running:
            self._placer.signal(birth, number)

    def _on_event(self, event: processes.Event) -> None:
        match event:
            case processes.Started(birth, _):
                self._has_started = True
                if self._sent is not None:
                    self._placer.signal(birth, self._sent)
            case processes.Refused(birth, number):
                self._running.discard(birth)
                text = f"worker {birth} could not be started: {os.strerror(number)}"
                if not self._has_started:
                    raise OSError(number, text, self._spec.command[0])
                self._tell(membership.Ended(birth, _NOT_STARTED, text))
            case processes.Ended(birth, code, how):
                self._running.discard(birth)
                self._forwarder.read_out([birth])
                self._tell(membership.Ended(birth, code, how or describe_exit(code)))

    # What is decided, and done about it

    def _tell(self, event: membership.Event) -> None:
        if self._is_stopping:
            return
        self._state, actions = membership.decide(self._state, event, time.monotonic())
        for action in actions:
            self._act(action)

    def _act(self, action: membership.Action) -> None:
        match action:
            case membership.Start(birth, slot):
                self._start(birth, slot)
            case membership.Signal(birth, number):
                self._placer.signal(birth, number)
            case membership.Dismiss(birth, why):
                self._server.dismiss(birth, why)
            case membership.Close(generation, why):
                self._server.close_generation(generation, why)
            case membership.Announce(generation, places):
                self._server.give_places({birth: asdict(place) for birth, place in places.items()}, generation)
                if generation > 0 or self._spec.verbose:
                    self._output.say(words.announcement(action, self._slots))
            case membership.Notify(births, generation, update):
                message = {"generation": generation, "timestamp": time.time(), "update": update}
                self._server.notify(births, message)
            case membership.Waiting():
                self._output.say(words.waiting(action, self._spec.limits.timeout_s))
            case membership.GiveUp(why, code):
                self._result.exit_code, self._result.text = code, f"the elastic job is ended: {why}"
                self._output.say(self._result.text)

    def _start(self, birth: int, slot: membership.Slot) -> None:
        self._slots[birth] = slot
        pipes = self._placer.start(birth, self._spec.command, self._environment(birth, slot))
        self._forwarder.add(birth, *pipes)
        self._running.add(birth)

    def _environment(self, birth: int, slot: membership.Slot) -> dict[str, str]:
        """Nothing of ranks, which are another in each generation."""
        return {
            **self._spec.env,
            **self._spec.host_env.get(slot[0], {}),
            "HOROVOD_HOSTNAME": slot[0],
            "HOROVOD_ELASTIC": "1",
            BIRTH_VARIABLE: str(birth),
        }

    def _finish(self) -> None:
        with suppress(GuardianLostError):
            self._ending.end_tree(0.0 if self._sent == signal.SIGKILL else self._spec.grace_s)
        self._selector.unregister(self._placer)
        self._forwarder.read_out(self._slots)
        self._ending.wait_until(lambda: self._forwarder.has_read_all, _READ_LIMIT_S)
        self._forwarder.stop()
        self._selector.close()
