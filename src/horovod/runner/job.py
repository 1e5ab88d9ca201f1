# SPDX-License-Identifier: Apache-2.0
"""Runs one job on this machine: starts the workers, forwards output and signals, reports the first failure first."""

from __future__ import annotations

import selectors
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from horovod.runner.hosts import SlotInfo
from horovod.runner.output import OutputForwarder, OutputOptions, Sink
from horovod.runner.process_groups import living_groups
from horovod.runner.processes import Guard, WorkerProcess, describe_exit
from horovod.runner.supervision import GRACE_S, Exit, Supervision, blames_peer
from horovod.runner.worker_environment import slot_environment

if TYPE_CHECKING:
    from horovod.common.rendezvous_server import Server

_READ_LIMIT_S = 1.0
_POLL_S = 0.02
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class JobSpec:
    """What to run where. `env` holds everything but the place of each rank."""

    command: Sequence[str]
    slots: Sequence[SlotInfo]
    env: Mapping[str, str]
    output: OutputOptions
    verbose: bool = False
    grace_s: float = GRACE_S


@dataclass
class JobResult:
    """`failed_rank` and `text` are set if a worker failed; `stop_signal` if a signal ended the job."""

    exit_code: int = 0
    failed_rank: int | None = None
    text: str = ""
    stop_signal: int | None = None


class Job:
    """One run. Use `run()` once."""

    def __init__(self, spec: JobSpec, server: Server, stdout: Sink, stderr: Sink) -> None:
        self._spec = spec
        self._server = server
        self._stderr = stderr
        self._forwarder = OutputForwarder(spec.output, stdout, stderr)
        self._supervision = Supervision(grace_s=spec.grace_s)
        self._guard = Guard()
        self._workers: list[WorkerProcess] = []
        self._running: set[WorkerProcess] = set()
        self._selector = selectors.DefaultSelector()
        self._result = JobResult()

    def run(self) -> JobResult:
        with _stop_signals() as signals:
            self._selector.register(signals.receiver, selectors.EVENT_READ)
            self._forwarder.start()
            try:
                self._start_workers()
                while self._running:
                    self._step(signals)
                self._supervision.on_all_ended()
            finally:
                self._finish()
        self._result.exit_code = self._supervision.exit_code()
        self._result.stop_signal = self._supervision.stop_signal
        return self._result

    def _start_workers(self) -> None:
        for slot in self._spec.slots:
            env = {**self._spec.env, **slot_environment(slot)}
            worker = WorkerProcess(slot.rank, slot.hostname, self._spec.command, env, self._guard)
            self._workers.append(worker)
            self._running.add(worker)
            if worker.exit_descriptor is not None:
                self._selector.register(worker.exit_descriptor, selectors.EVENT_READ)
            self._forwarder.add(slot.rank, *worker.pipes)

    def _step(self, signals: _Signals) -> None:
        self._selector.select(self._time_left())
        for number in signals.take():
            self._on_signal(number)
        for worker in [worker for worker in self._workers if worker in self._running]:
            if worker.poll() is not None:
                self._on_exit(worker)
        self._act(self._supervision.on_time(time.monotonic()))

    def _time_left(self) -> float | None:
        limits = [_POLL_S] if any(worker.exit_descriptor is None for worker in self._running) else []
        if self._supervision.deadline is not None:
            limits.append(max(0.0, self._supervision.deadline - time.monotonic()))
        return min(limits, default=None)

    def _on_signal(self, number: int) -> None:
        first = self._supervision.stop_signal is None
        if first and not self._spec.verbose:
            self._forwarder.show_errors_only_of(0)
        action = self._supervision.on_signal(number, time.monotonic())
        name = signal.Signals(number).name
        if action == signal.SIGKILL:
            self._say(f"{name} again: killing the workers")
        elif action is not None:
            again = "; Ctrl-C again kills them" if number == signal.SIGINT else ""
            self._say(f"{name}: the workers have {self._spec.grace_s:g} s to end{again}")
        self._act(action)

    def _on_exit(self, worker: WorkerProcess) -> None:
        code = worker.exit_code
        assert code is not None
        self._running.discard(worker)
        if worker.exit_descriptor is not None:
            self._selector.unregister(worker.exit_descriptor)
        self._server.lose(worker.rank, f"rank {worker.rank} on {worker.host} has ended: {describe_exit(code)}")
        before = self._supervision.failure
        if code == 0:
            return
        self._forwarder.wait_until_read(worker.rank, _READ_LIMIT_S)
        blames = blames_peer(self._forwarder.last_error_lines(worker.rank))
        action = self._supervision.on_exit(Exit(worker.rank, code, blames), time.monotonic())
        if before is None and self._supervision.failure is not None:
            self._report_failure(self._supervision.failure)
        self._act(action)

    def _report_failure(self, failure: Exit) -> None:
        worker = self._workers[failure.rank]
        how = describe_exit(failure.code)
        what = f"rank {failure.rank} (host {worker.host}, pid {worker.pid}) failed first: {how}"
        lines = self._forwarder.last_error_lines(failure.rank)
        text = what + ("\n  last lines of its stderr:" if lines else "; it wrote nothing to stderr")
        self._result.failed_rank = failure.rank
        self._result.text = "\n".join([text, *(f"    {line}" for line in lines)])
        self._say(self._result.text)
        if not self._spec.verbose:
            self._forwarder.show_errors_only_of(failure.rank)

    def _act(self, action: int | None) -> None:
        if action is None:
            return
        if self._supervision.failure is not None and self._result.failed_rank is None:
            self._report_failure(self._supervision.failure)
        for worker in self._running:
            worker.signal_tree(action)

    def _finish(self) -> None:
        """Leave nothing behind: what the workers started goes too, whether the job went well or not."""
        if self._supervision.failure is not None and self._result.failed_rank is None:
            self._report_failure(self._supervision.failure)
        self._end_leftovers()
        self._forwarder.wait_until_read(None, _READ_LIMIT_S)
        for worker in self._workers:
            worker.release()
        self._forwarder.stop()
        if muted := self._forwarder.muted_lines():
            self._say(
                f"{muted} later lines of the other ranks' stderr are not shown (--verbose shows them, "
                "--output-filename keeps them)"
            )
        self._guard.close()
        self._selector.close()

    def _end_leftovers(self) -> None:
        left = _with_living_members(self._workers)
        for worker in left:
            worker.signal_tree(signal.SIGTERM)
        deadline = time.monotonic() + self._spec.grace_s
        while left and time.monotonic() < deadline:
            time.sleep(_POLL_S)  # members of a foreign tree cannot be waited for
            left = _with_living_members(left)
        for worker in left:
            worker.signal_tree(signal.SIGKILL)

    def _say(self, text: str) -> None:
        self._stderr("".join(f"horovodrun: {text}\n").encode(errors="replace"))


def _with_living_members(workers: list[WorkerProcess]) -> list[WorkerProcess]:
    alive = living_groups()
    return [worker for worker in workers if worker.pid in alive]


class _Signals:
    """Signals that came, and a socket that becomes readable when one does."""

    def __init__(self) -> None:
        self.receiver, self._sender = socket.socketpair()
        self.receiver.setblocking(False)
        self._sender.setblocking(False)
        self._came: list[int] = []

    def note(self, number: int, _frame: FrameType | None) -> None:
        self._came.append(number)
        with suppress(BlockingIOError):  # full: the loop is awake anyway
            self._sender.send(b"\0")

    def take(self) -> list[int]:
        with suppress(BlockingIOError):
            self.receiver.recv(4096)
        came, self._came = self._came, []
        return came

    def close(self) -> None:
        self.receiver.close()
        self._sender.close()


@contextmanager
def _stop_signals() -> Iterator[_Signals]:
    """Collects stop signals in place of their handlers; outside the main thread Python allows no handlers."""
    signals = _Signals()
    previous: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in _STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                previous[number] = signal.signal(number, signals.note)
    try:
        yield signals
    finally:
        for restored, handler in previous.items():
            signal.signal(restored, handler if handler is not None else signal.SIG_DFL)
        signals.close()
