# SPDX-License-Identifier: Apache-2.0
"""Runs an elastic job as its launcher does: one loop waits for signals, the workers' ends, mail and time.

What is decided about its workers is the driver's (driving.py); this loop ends them when a user wants the job to end.
"""

from __future__ import annotations

import selectors
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from horovod.runner.elastic.driving import Driver
from horovod.runner.elastic.host_book import Found, HostEvent, Pass
from horovod.runner.elastic.hosts import Agents, Hosts, NoAgents
from horovod.runner.elastic.mail import Mail
from horovod.runner.elastic.vocabulary import Ended, Event, Limits, Tick
from horovod.runner.elastic.workers import Program, Workers
from horovod.runner.ending import Ending, heed_signal, suspend_if_asked
from horovod.runner.job import JobResult
from horovod.runner.output import OutputForwarder, OutputOptions
from horovod.runner.placement import Placer
from horovod.runner.processes import GuardianLostError
from horovod.runner.stop_signals import StopSignals
from horovod.runner.supervision import GRACE_S, State, Supervision, blames_peer
from horovod.runner.user_output import UserOutput

if TYPE_CHECKING:
    from horovod.common.rendezvous.server import Server

_READ_LIMIT_S = 1.0
_LAST_WORDS_S = 0.5  # shorter than membership.FENCE_S: one that has ended is not to be taken for a frozen one
_SIGNALS = 128  # exit codes above this are of workers that a signal has ended


@dataclass(frozen=True)
class ElasticSpec:
    """What to run, where to begin, and how many there may be. `address_of`: see Driver."""

    program: Program
    output: OutputOptions
    limits: Limits
    hosts: Found
    agents: Agents = field(default_factory=NoAgents)
    address_of: Callable[[str], str | None] = lambda host: None
    verbose: bool = False
    grace_s: float = GRACE_S


class ElasticJob:
    """One run. Workers are known to the placer and to the output by their birth ids. Use `run()` once.

    `host_of`: by birth id, filled in before a worker is started, for the placer.
    """

    def __init__(
        self,
        spec: ElasticSpec,
        server: Server,
        placer: Placer,
        output: UserOutput,
        mail: Mail[Event | HostEvent],
        host_of: dict[int, str],
    ) -> None:
        self._spec = spec
        self._placer = placer
        self._output = output
        self._mail = mail
        self._signals = StopSignals()
        self._forwarder = OutputForwarder(spec.output, output, self._signals.ring)
        self._supervision = Supervision(grace_s=spec.grace_s)
        self._workers = Workers(spec.program, placer, self._forwarder, host_of)
        self._driver = Driver(
            spec.limits, server, self._workers, output.say, verbose=spec.verbose, address_of=spec.address_of
        )
        self._hosts = Hosts(self._driver, spec.agents, output.say, spec.limits.cooldown)
        self._selector = selectors.DefaultSelector()
        self._ending = Ending(placer, self._selector, self._signals, output)
        self._exits: deque[tuple[Ended, float]] = deque()  # and when to stop waiting for last words
        self._sent: int | None = None

    def run(self) -> JobResult:
        with self._signals:
            for source in (self._signals, self._placer, self._mail):
                self._selector.register(source, selectors.EVENT_READ)
            self._forwarder.start()
            try:
                self._hosts.tell(self._spec.hosts)
                while self._is_under_way():
                    self._step()
            finally:
                self._finish()
        stop_signal = self._supervision.stop_signal
        if stop_signal is not None:
            return JobResult(self._supervision.exit_code(), stop_signal=stop_signal)
        outcome = self._driver.outcome
        return JobResult(outcome.exit_code, failed_rank=outcome.worker, text=outcome.text)

    def _is_under_way(self) -> bool:
        if self._supervision.stop_signal is not None:
            return bool(self._workers.running) and self._supervision.state is not State.GIVEN_UP
        return not self._driver.is_over

    def _step(self) -> None:
        self._selector.select(self._time_left())
        suspend_if_asked(self._signals, self._placer)
        for number in self._signals.take():
            self._driver.stop()
            self._send(heed_signal(number, self._supervision, self._output))
        events = self._placer.events()
        self._hosts.tell_lost()
        for event in events:
            if (ended := self._workers.heard(event)) is not None:
                self._heed_end(ended)
        self._judge_exits()
        for news in self._mail.take():
            if isinstance(news, HostEvent):
                self._hosts.tell(news)
            else:
                self._driver.tell(news)
        self._send(self._supervision.on_time(time.monotonic()))
        self._hosts.tell(Pass(self._workers.busy_hosts()))
        self._driver.tell(Tick())

    def _heed_end(self, ended: Ended) -> None:
        """At once, unless its last words may tell that it is not the cause. Who was killed has none: survivors of it
        need not wait for its pipes, which processes that it started may hold open."""
        if 0 < ended.code < _SIGNALS:
            self._exits.append((ended, time.monotonic() + _LAST_WORDS_S))
        else:
            self._driver.tell(ended)

    def _judge_exits(self) -> None:
        while self._exits:
            ended, limit = self._exits[0]
            if time.monotonic() < limit and not self._forwarder.has_read(ended.birth):
                return
            self._exits.popleft()
            blames = blames_peer(self._forwarder.last_error_lines(ended.birth))
            self._driver.tell(replace(ended, blames_peer=blames))

    def _time_left(self) -> float | None:
        deadline = self._supervision.deadline
        times = [
            max(0.0, self._exits[0][1] - time.monotonic()) if self._exits else None,
            self._driver.time_left(),
            self._hosts.time_left(),
            None if deadline is None else max(0.0, deadline - time.monotonic()),
        ]
        return min((left for left in times if left is not None), default=None)

    def _send(self, number: int | None) -> None:
        if number is not None:
            self._sent = number
            self._workers.signal_all(number)

    def _finish(self) -> None:
        self._hosts.stop()
        with suppress(GuardianLostError):
            self._ending.end_tree(0.0 if self._sent == signal.SIGKILL else self._spec.grace_s)
        self._selector.unregister(self._placer)
        self._forwarder.read_out(self._driver.slots)
        self._ending.wait_until(lambda: self._forwarder.has_read_all, _READ_LIMIT_S)
        self._forwarder.stop()
        self._selector.close()
