# SPDX-License-Identifier: Apache-2.0
"""One job: start the workers, forward output and signals, and report the first failure first.

One loop waits for signals, the workers' ends and time. It never waits for a reader of the output.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from horovod.launcher.output.forwarding import OutputForwarder, OutputOptions
from horovod.launcher.output.user_output import UserOutput
from horovod.launcher.start.ending import Ending, heed_signal, suspend_if_asked
from horovod.launcher.start.hosts import SlotInfo
from horovod.launcher.start.leave_reports import LeaveReport, LeaveReports
from horovod.launcher.start.not_run import StartError, host_elsewhere
from horovod.launcher.start.placement import Placer
from horovod.launcher.start.post_mortem import exit_table, failure_text
from horovod.launcher.start.processes import Ended, Event, GuardianLostError, Refused, Started, describe_exit
from horovod.launcher.start.stop_signals import StopSignals
from horovod.launcher.start.supervision import GRACE_S, Exit, State, Supervision, blames_peer
from horovod.launcher.start.thread_failures import ThreadFailures
from horovod.launcher.start.worker_environment import slot_environment, torchrun_environment

if TYPE_CHECKING:
    from horovod.common.rendezvous.server import Server

READ_LIMIT_S = 1.0


@dataclass(frozen=True)
class JobSpec:
    """Command, slots, environment and output of a job.

    `env` holds all variables except each rank's place. `main` is the address and port for PyTorch's store.
    """

    command: Sequence[str]
    slots: Sequence[SlotInfo]
    env: Mapping[str, str]
    output: OutputOptions
    main: tuple[str, int]
    host_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # variables of one host's workers only
    verbose: bool = False
    grace_s: float = GRACE_S


@dataclass
class JobResult:
    """Result of a job.

    `failed_rank` (a birth id in an elastic job), `text` and `why` (one line) are set if a worker failed. `stop_signal`
    is set if a signal ended the job.
    """

    exit_code: int = 0
    failed_rank: int | None = None
    text: str = ""
    stop_signal: int | None = None
    why: str = ""


class StartQueue:
    """Ranks that are still to be started: one at a time on each host."""

    def __init__(self, slots: Sequence[SlotInfo]) -> None:
        self._to_start: dict[str, deque[SlotInfo]] = {}
        for slot in slots:
            self._to_start.setdefault(slot.hostname, deque()).append(slot)
        self.starting: dict[str, int] = {}  # rank that is being started, by host

    def __bool__(self) -> bool:
        return any(self._to_start.values())

    @property
    def has_several_hosts(self) -> bool:
        return len(self._to_start) > 1

    def next_slots(self) -> Iterator[SlotInfo]:
        """Yield one slot of each host that starts no rank now. The caller starts it at once."""
        for host, slots in self._to_start.items():
            if slots and host not in self.starting:
                slot = slots.popleft()
                yield slot
                self.starting[host] = slot.rank

    def answered(self, host: str, rank: int) -> None:
        """Record that a rank was started or refused.

        The end of an earlier rank on its host must not count as the answer, so compare the ranks.
        """
        if self.starting.get(host) == rank:
            del self.starting[host]


class RankRecords:
    """What is known of the ranks' processes."""

    def __init__(self) -> None:
        self.pids: dict[int, int] = {}
        self.running: set[int] = set()
        self.reported: dict[int, str] = {}  # the exception that a rank has reported, by rank
        self.how: dict[int, str] = {}  # how ranks failed, in the order of their failures

    def how_it_failed(self, rank: int) -> str:
        """Return how a rank ended, or what it reported if it has not ended or its exit code does not show a failure."""
        how, reported = self.how.get(rank), self.reported.get(rank)
        if how is None:
            return f"it {reported}, and its process did not end"
        return f"it {reported} ({how})" if reported is not None and how == describe_exit(0) else how


class Job:
    """One run of a job. Use `run()` once."""

    def __init__(
        self, spec: JobSpec, server: Server, tree: Placer, output: UserOutput, reports: LeaveReports | None = None
    ) -> None:
        self._spec = spec
        self._server = server
        self._tree = tree
        self._output = output
        self._signals = StopSignals()
        self._reports = reports if reports is not None else LeaveReports()
        self._thread_failures = ThreadFailures(self._signals.ring)
        self._forwarder = OutputForwarder(spec.output, output, self._signals.ring)
        self._supervision = Supervision(grace_s=spec.grace_s)
        self._queue = StartQueue(spec.slots)
        self._ranks = RankRecords()
        # each with the rank, the exit code, and the time at which to stop waiting for the last output
        self._exits: deque[tuple[int, int, float]] = deque()
        self._sent: int | None = None
        self._selector = selectors.DefaultSelector()
        self._ending = Ending(tree, self._selector, self._signals, output)
        self._result = JobResult()

    def run(self) -> JobResult:
        with self._signals, self._thread_failures:
            self._selector.register(self._signals, selectors.EVENT_READ)
            self._selector.register(self._tree, selectors.EVENT_READ)
            self._forwarder.start()
            self._reports.wake_by(self._signals.ring)
            try:
                while self._is_under_way():
                    self._start_next()
                    self._step()
                self._supervision.on_all_ended()
            finally:
                self._finish()
        self._result.exit_code = self._supervision.exit_code()
        self._result.stop_signal = self._supervision.stop_signal
        return self._result

    def _may_start(self) -> bool:
        return bool(self._queue) and self._supervision.state is State.RUNNING

    def _is_under_way(self) -> bool:
        if self._supervision.state is State.GIVEN_UP:
            return False
        return bool(self._ranks.running or self._exits or self._queue.starting) or self._may_start()

    def _start_next(self) -> None:
        """Start one rank on each host that starts none now, so that signals and failures are handled in between."""
        if not self._may_start():
            return
        for slot in self._queue.next_slots():
            pipes = self._tree.start(slot.rank, self._spec.command, self._environment(slot))
            self._forwarder.add(slot.rank, *pipes)

    def _environment(self, slot: SlotInfo) -> dict[str, str]:
        return {
            **self._spec.env,
            **self._spec.host_env.get(slot.hostname, {}),
            **slot_environment(slot),
            **torchrun_environment(slot, *self._spec.main, self._spec.env),
        }

    def _step(self) -> None:
        self._selector.select(self._time_left())
        self._thread_failures.check()
        suspend_if_asked(self._signals, self._tree)
        for number in self._signals.take():
            self._on_signal(number)
        for number in self._signals.take_forwarded():
            for rank in self._ranks.running:
                self._tree.signal(rank, number)
        for report in self._reports.take():
            self._on_report(report)
        for event in self._tree.events():
            self._on_event(event)
        self._judge_exits()
        self._act(self._supervision.on_time(time.monotonic(), has_unread_exits=bool(self._exits)))

    def _time_left(self) -> float | None:
        limits = [limit for _, _, limit in list(self._exits)[:1]]
        waits_for_words = limits and self._supervision.state is State.WAITING_FOR_CAUSE
        if self._supervision.deadline is not None and not waits_for_words:
            limits.append(self._supervision.deadline)
        return max(0.0, min(limits) - time.monotonic()) if limits else None

    def _on_signal(self, number: int) -> None:
        first = self._supervision.stop_signal is None
        if first and not self._spec.verbose:
            self._forwarder.show_errors_only_of(0)
        self._act(heed_signal(number, self._supervision, self._output))

    def _on_event(self, event: Event) -> None:
        match event:
            case Started(rank, pid):
                self._queue.answered(self._host_of(rank), rank)
                self._ranks.pids[rank] = pid
                self._ranks.running.add(rank)
                if self._sent is not None:
                    self._tree.signal(rank, self._sent)
            case Refused(rank, number):
                self._queue.answered(self._host_of(rank), rank)
                raise self._start_error(rank, number)
            case Ended(rank, code, how):
                self._queue.answered(self._host_of(rank), rank)  # needed if the rank's host was lost meanwhile
                self._on_exit(rank, code, how or describe_exit(code))

    def _start_error(self, rank: int, number: int) -> OSError:
        where = f" on {self._host_of(rank)}" if self._queue.has_several_hosts else ""
        text = f"rank {rank} of {len(self._spec.slots)} could not be started{where}: {os.strerror(number)}"
        return StartError(number, text, self._spec.command[0], host_elsewhere(self._host_of(rank)))

    def _host_of(self, rank: int) -> str:
        return self._spec.slots[rank].hostname

    def _on_report(self, report: LeaveReport) -> None:
        """Record that a rank is ending because of an exception.

        Its process may take long, and others may end before it.
        """
        expected = Exit(report.rank, report.code)
        if report.rank in self._ranks.running and self._supervision.on_report(expected, time.monotonic()):
            self._ranks.reported[report.rank] = report.what

    def _on_exit(self, rank: int, code: int, how: str) -> None:
        self._ranks.running.discard(rank)
        self._server.lose(rank, f"rank {rank} on {self._host_of(rank)} has ended: {how}")
        if code != 0 or rank in self._ranks.reported:
            self._ranks.how[rank] = how
            self._forwarder.read_out([rank])
            self._exits.append((rank, code, time.monotonic() + READ_LIMIT_S))

    def _judge_exits(self) -> None:
        """Judge exits in order, once the rank's last output was read. It shows whether the rank is the cause."""
        while self._exits:
            rank, code, limit = self._exits[0]
            now = time.monotonic()
            if now < limit and not self._forwarder.has_read(rank):
                return
            self._exits.popleft()
            blames = blames_peer(self._forwarder.last_error_lines(rank))
            self._act(self._supervision.on_exit(Exit(rank, code, blames), now))

    def _note_failure(self) -> None:
        """Record the first failure, which is shown once all ranks have ended."""
        failure = self._supervision.failure
        if failure is None or self._result.failed_rank is not None:
            return
        host, pid = self._host_of(failure.rank), self._ranks.pids.get(failure.rank, "unknown")
        how = self._ranks.how_it_failed(failure.rank)
        what = f"rank {failure.rank} (host {host}, pid {pid}) failed first: {how}"
        self._result.failed_rank = failure.rank
        self._result.why = f"rank {failure.rank} on {host}: {how}"
        error, lines = self._forwarder.last_error(failure.rank), self._forwarder.last_error_lines(failure.rank)
        self._result.text = failure_text(what, how, error, lines, self._ranks.reported.get(failure.rank))
        if not self._spec.verbose:
            self._forwarder.show_errors_only_of(failure.rank)

    def _act(self, action: int | None) -> None:
        if action is None:
            return
        self._note_failure()
        self._sent = action
        self._forwarder.read_out(self._ranks.running)  # a slow reader must not delay workers that are about to end
        for rank in self._ranks.running:
            self._tree.signal(rank, action)

    def _finish(self) -> None:
        """End all processes that the workers started, read their last output, and print the failure if there is one."""
        self._note_failure()
        with suppress(GuardianLostError):  # if the guardian was lost just now, there is nothing left to end
            has_failed = self._supervision.failure is not None or self._supervision.stop_signal is not None
            went_well = not self._ranks.running and not has_failed
            grace_s = 0.0 if self._sent == signal.SIGKILL else self._spec.grace_s
            self._ending.end_tree(grace_s, went_well=went_well)
        self._selector.unregister(self._tree)
        self._forwarder.read_out(self._ranks.pids)
        self._ending.wait_until(lambda: self._forwarder.has_read_all, READ_LIMIT_S)
        self._forwarder.stop()
        if muted := self._forwarder.muted_lines():
            self._output.say(
                f"{muted} later lines of the other ranks' stderr are not shown (--verbose shows them, "
                "--output-filename keeps them)"
            )
        if self._result.failed_rank is not None:
            not_started = {
                rank: "was not started" for rank in range(len(self._spec.slots)) if rank not in self._ranks.pids
            }
            table = exit_table(self._spec.slots, self._result.failed_rank, {**not_started, **self._ranks.how})
            self._output.say("\n".join([self._result.text, *([table] if len(self._spec.slots) > 1 else [])]))
        self._selector.close()
