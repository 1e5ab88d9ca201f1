# SPDX-License-Identifier: Apache-2.0
"""Loop that runs an elastic job in its launcher: it waits for signals, the workers' ends, mail and time.

The driver (driving.py) makes the decisions about workers; this loop ends them when the user wants the job to end.
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

from horovod.launcher.elastic import words
from horovod.launcher.elastic.driving import Driver, Outcome
from horovod.launcher.elastic.host_book import Found, HostEvent, Pass
from horovod.launcher.elastic.hosts import Agents, Hosts, NoAgents
from horovod.launcher.elastic.mail import Mail
from horovod.launcher.elastic.vocabulary import Ended, Event, Limits, Probe, Tick
from horovod.launcher.elastic.workers import Program, Workers
from horovod.launcher.output.forwarding import OutputForwarder, OutputOptions
from horovod.launcher.output.user_output import UserOutput
from horovod.launcher.start.ending import Ending, heed_signal, suspend_if_asked
from horovod.launcher.start.job import JobResult
from horovod.launcher.start.placement import Placer
from horovod.launcher.start.post_mortem import failure_text
from horovod.launcher.start.processes import GuardianLostError
from horovod.launcher.start.stop_signals import StopSignals
from horovod.launcher.start.supervision import GRACE_S, State, Supervision, blames_peer
from horovod.launcher.start.thread_failures import ThreadFailures

if TYPE_CHECKING:
    from horovod.common.rendezvous.server import Server

_READ_LIMIT_S = 1.0
_LAST_WORDS_S = 0.5  # less than membership.FENCE_S, so that an ended worker is not taken for a frozen one
_SIGNALS = 128  # exit codes above this mean that a signal ended the worker


@dataclass(frozen=True)
class ElasticSpec:
    """Command, hosts, limits and output of an elastic job. For `address_of` and `probe` see Driver."""

    program: Program
    output: OutputOptions
    limits: Limits
    hosts: Found
    agents: Agents = field(default_factory=NoAgents)
    address_of: Callable[[str], str | None] = lambda host: None
    probe: Callable[[Probe], None] | None = None
    verbose: bool = False
    grace_s: float = GRACE_S


class ElasticJob:
    """One run of an elastic job. Use `run()` once.

    The placer and the output know workers by their birth ids. `host_of` maps birth ids to hosts; it is filled in before
    a worker starts, because the placer reads it.
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
        self._thread_failures = ThreadFailures(self._signals.ring)
        self._forwarder = OutputForwarder(spec.output, output, self._signals.ring)
        self._supervision = Supervision(grace_s=spec.grace_s)
        self._workers = Workers(spec.program, placer, self._forwarder, host_of)
        self._driver = Driver(
            spec.limits,
            server,
            self._workers,
            output.say,
            verbose=spec.verbose,
            shows_end=False,  # the error is shown after the workers' last output
            address_of=spec.address_of,
            probe=spec.probe,
        )
        self._hosts = Hosts(self._driver, spec.agents, output.say, spec.limits.cooldown)
        self._selector = selectors.DefaultSelector()
        self._ending = Ending(placer, self._selector, self._signals, output)
        # each end with the time at which to stop waiting for the worker's last output
        self._exits: deque[tuple[Ended, float]] = deque()
        self._sent: int | None = None
        self._result = JobResult()

    def run(self) -> JobResult:
        with self._signals, self._thread_failures:
            for source in (self._signals, self._placer, self._mail):
                self._selector.register(source, selectors.EVENT_READ)
            self._forwarder.start()
            try:
                self._hosts.tell(self._spec.hosts)
                self._driver.tell(Tick())  # start the time limit even if there is no host yet
                while self._is_under_way():
                    self._step()
            finally:
                self._finish()
        return self._result

    def _is_under_way(self) -> bool:
        if self._supervision.stop_signal is not None:
            return bool(self._workers.running) and self._supervision.state is not State.GIVEN_UP
        return not self._driver.is_over

    def _step(self) -> None:
        self._selector.select(self._time_left())
        self._thread_failures.check()
        suspend_if_asked(self._signals, self._placer)
        for number in self._signals.take():
            self._driver.stop()
            self._send(heed_signal(number, self._supervision, self._output))
        for number in self._signals.take_forwarded():
            self._workers.forward(number)
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
        """Report the end of a worker to the driver, at once or after its last output was read.

        The last output may show that the worker is not the cause. A worker that a signal killed has none, so there is
        no need to wait for its pipes, which its child processes may hold open.
        """
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
            went_well = self._driver.is_over and self._driver.outcome.exit_code == 0 and self._sent is None
            grace_s = 0.0 if self._sent == signal.SIGKILL else self._spec.grace_s
            self._ending.end_tree(grace_s, went_well=went_well)
        self._selector.unregister(self._placer)
        self._forwarder.read_out(self._driver.slots)
        self._ending.wait_until(lambda: self._forwarder.has_read_all, _READ_LIMIT_S)
        self._forwarder.stop()
        self._show_result()
        self._selector.close()

    def _show_result(self) -> None:
        """Print why the job failed as the last line of its output, unless a signal ended it."""
        stop_signal = self._supervision.stop_signal
        if stop_signal is not None:
            self._result = JobResult(self._supervision.exit_code(), stop_signal=stop_signal)
        elif self._driver.is_over and (outcome := self._driver.outcome).exit_code != 0:
            text = words.end(self._describe_failure(outcome), self._driver.state.history)
            self._result = JobResult(outcome.exit_code, failed_rank=outcome.worker, text=text, why=outcome.text)
            self._output.say(text)

    def _describe_failure(self, outcome: Outcome) -> str:
        """Return why the job failed, with the error of the worker that failed first."""
        first = outcome.worker
        if first is None:
            return outcome.text
        failure = next((one for one in self._driver.state.history if one.birth == first), None)
        how, reported = (failure.why, failure.reported) if failure is not None else ("", None)
        error, last_lines = self._forwarder.last_error(first), self._forwarder.last_error_lines(first)
        return failure_text(outcome.text, how, error, last_lines, reported)
