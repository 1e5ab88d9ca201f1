# SPDX-License-Identifier: Apache-2.0
"""What workers report about themselves before they end because of an exception."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from horovod.common.leaving import printable


@dataclass(frozen=True)
class LeaveReport:
    """`what`: for example "raised ValueError: no such file". `code`: the exit code to expect."""

    rank: int
    what: str
    code: int


def leave_in(message: Mapping[str, Any]) -> tuple[str, int]:
    """Return what a worker reports to have done, and the exit code to expect. The worker's values are not trusted.

    KeyError or TypeError if the message is no such report.
    """
    what, code = message["leaves"], message["code"]
    if not isinstance(what, str) or type(code) is not int:
        raise TypeError("a report of a worker that leaves takes a text and an exit code")
    return printable(what), code if 0 < code < 256 else 1


class LeaveReports:
    """The rendezvous adds to it on its thread, the job takes from it on its own."""

    def __init__(self) -> None:
        self._came: deque[LeaveReport] = deque()
        self._wake: Callable[[], object] = lambda: None

    def wake_by(self, wake: Callable[[], object]) -> None:
        """Call this function, on the rendezvous' thread, when a report has come."""
        self._wake = wake

    def add(self, rank: int, message: dict[str, Any]) -> None:
        """Take a report of a worker of a fixed job; ignore any other message."""
        with suppress(KeyError, TypeError):
            self._came.append(LeaveReport(rank, *leave_in(message)))
            self._wake()

    def take(self) -> list[LeaveReport]:
        """Return those that have come since the last call."""
        return [self._came.popleft() for _ in range(len(self._came))]
