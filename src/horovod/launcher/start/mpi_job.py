# SPDX-License-Identifier: Apache-2.0
"""Job that mpirun runs: forward signals to mpirun, and leave none of its processes on this machine."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from horovod.launcher.output.forwarding import OutputForwarder, OutputOptions
from horovod.launcher.output.user_output import UserOutput
from horovod.launcher.start.ending import Ending, heed_signal, suspend_if_asked
from horovod.launcher.start.job import READ_LIMIT_S, JobResult
from horovod.launcher.start.processes import Ended, GuardianLostError, ProcessTree, Refused
from horovod.launcher.start.stop_signals import StopSignals
from horovod.launcher.start.supervision import Exit, State, Supervision

_MPIRUN = 0  # key of the only process in the tree


class MpirunJob:
    """One run of mpirun. Use `run()` once."""

    def __init__(self, tree: ProcessTree, output: UserOutput) -> None:
        self._tree = tree
        self._output = output
        self._signals = StopSignals()
        self._supervision = Supervision()
        shown = OutputOptions(size=1, tags=False, fold_tracebacks=False)  # mpirun has already merged the ranks' output
        self._forwarder = OutputForwarder(shown, output, self._signals.ring)
        self._selector = selectors.DefaultSelector()
        self._ending = Ending(tree, self._selector, self._signals, output)
        self._sent: int | None = None
        self._code: int | None = None
        self._is_forwarding = False  # True once mpirun was started and its output is read

    def run(self, words: Sequence[str], env: Mapping[str, str]) -> JobResult:
        """Start mpirun and wait for its end. Raise OSError if it cannot be started."""
        with self._signals:
            self._selector.register(self._signals, selectors.EVENT_READ)
            self._selector.register(self._tree, selectors.EVENT_READ)
            self._forwarder.start()
            try:
                self._forwarder.add(_MPIRUN, *self._tree.start(_MPIRUN, words, env))
                self._is_forwarding = True
                while self._code is None and self._supervision.state is not State.GIVEN_UP:
                    self._step(words[0])
            finally:
                self._finish()
        return JobResult(exit_code=self._supervision.exit_code(), stop_signal=self._supervision.stop_signal)

    def _step(self, program: str) -> None:
        deadline = self._supervision.deadline
        self._selector.select(None if deadline is None else max(0.0, deadline - time.monotonic()))
        suspend_if_asked(self._signals, self._tree)
        for number in self._signals.take():
            self._act(heed_signal(number, self._supervision, self._output, whom="mpirun and the ranks"))
        for number in self._signals.take_forwarded():
            self._tree.signal(_MPIRUN, number)
        for event in self._tree.events():
            match event:
                case Ended(_, code):
                    self._code = code
                    self._supervision.on_exit(Exit(_MPIRUN, code), time.monotonic())
                case Refused(_, number):
                    raise OSError(number, os.strerror(number), program)
        self._act(self._supervision.on_time(time.monotonic()))

    def _act(self, number: int | None) -> None:
        if number is not None:
            self._sent = number
            self._forwarder.read_out([_MPIRUN])  # a slow reader must not delay the end
            self._tree.signal(_MPIRUN, number)

    def _finish(self) -> None:
        """End the remaining processes, and read their output."""
        grace_s = 0.0 if self._sent == signal.SIGKILL else self._supervision.grace_s
        with suppress(GuardianLostError):
            self._ending.end_tree(grace_s, went_well=self._code == 0 and self._sent is None)
        self._selector.unregister(self._tree)
        if self._is_forwarding:
            self._forwarder.read_out([_MPIRUN])
        self._ending.wait_until(lambda: self._forwarder.has_read_all, READ_LIMIT_S)
        self._forwarder.stop()
        self._selector.close()
