# SPDX-License-Identifier: Apache-2.0
"""The launcher's event loop, with a process launcher whose answers come in a scripted order."""

import os
import signal
from types import SimpleNamespace

from horovod.launcher.output.forwarding import OutputOptions
from horovod.launcher.output.user_output import UserOutput
from horovod.launcher.start.hosts import SlotInfo
from horovod.launcher.start.job import Job, JobSpec
from horovod.launcher.start.processes import Ended, Started
from horovod.launcher.start.stop_signals import StopSignals, dropping, forwarding


class SlowPlacer:
    """Scripted process launcher: each call of `events` returns the next element of `answers`."""

    left = ()

    def __init__(self, answers):
        self._answers = answers
        self._always_readable, self._other_end = os.pipe()
        os.write(self._other_end, b".")
        self.is_over = False
        self.ended_before = None  # answers that were not returned yet when `end` was called

    def fileno(self):
        return self._always_readable

    def start(self, key, command, env):
        pipes = [os.pipe() for _ in range(2)]
        for _, write in pipes:
            os.close(write)
        return tuple(os.fdopen(read, "rb", buffering=0) for read, _ in pipes)

    def events(self):
        return self._answers.pop(0) if self._answers else []

    def end(self, grace_s, patience_s=0.0):
        self.ended_before, self.is_over = list(self._answers), True

    def end_limit_s(self, grace_s):
        return grace_s

    def close(self):
        os.close(self._always_readable)
        os.close(self._other_end)


def test_users_signals_are_dropped_before_and_after_they_have_a_receiver():
    numbers = (signal.SIGUSR1, signal.SIGUSR2)
    defaults = [signal.getsignal(number) for number in numbers]
    received = []
    with dropping():
        dropped = [signal.getsignal(number) for number in numbers]
        # SIG_DFL would end this process, and children would inherit SIG_IGN.
        assert not set(dropped) & {signal.SIG_DFL, signal.SIG_IGN}
        for number in numbers:
            signal.raise_signal(number)
        with StopSignals() as signals:
            signal.raise_signal(signal.SIGUSR1)
            assert signals.take_forwarded() == [signal.SIGUSR1]
        with forwarding(received.append):
            signal.raise_signal(signal.SIGUSR2)
        assert received == [signal.SIGUSR2]
        assert [signal.getsignal(number) for number in numbers] == dropped
    assert [signal.getsignal(number) for number in numbers] == defaults


def test_the_end_of_one_worker_does_not_hide_that_another_is_being_started():
    """Otherwise the launcher would end the job while a worker is starting, if programs end as fast as others start."""
    placer = SlowPlacer([[Started(0, 100)], [Ended(0, 0)], [], [Started(1, 101)], [Ended(1, 0)]])
    slots = [SlotInfo("here", rank, rank, 0, 2, 2, 1) for rank in range(2)]
    spec = JobSpec(["true"], slots, {}, OutputOptions(size=2), ("127.0.0.1", 1))
    output = UserOutput(lambda data: len(data), lambda data: len(data))
    server = SimpleNamespace(lose=lambda rank, text: None)
    try:
        result = Job(spec, server, placer, output).run()
    finally:
        output.close(True)
        placer.close()
    assert result.exit_code == 0
    assert placer.ended_before == []
